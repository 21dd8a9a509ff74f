from collections.abc import Sequence
from typing import Any

import pytest

from palmette.backends.backend import Expands, Expansion, OnDevice, Step, TakesWeights
from palmette.backends.scripted import ScriptedBackend
from palmette.errors import BackendError, ConfigError
from palmette.memory.guard import GivesUpCache
from palmette.memory.oom import TellsCacheFull
from palmette.prefixes import KvCounts
from palmette.score.scorer import Candidate
from palmette.search.cluster import Clusterer
from palmette.search.growth import Growth, Limits, Observer, node_seed
from palmette.search.loop import search
from palmette.search.strategies.best_of_n import BestOfN
from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.search.strategies.rebase import Rebase, RebaseSettings
from palmette.strategy import Children, Frontier, FunctionStrategy, Strategy
from palmette.tasks.task import Question
from palmette.tree import Node

LIMITS = Limits(width=4, depth=25, step_tokens=50, total_tokens=100, questions_in_flight=2)
REBASE = Rebase(RebaseSettings(rebase_temperature=0.2))


def roomy(lambda_diversity: float) -> Ets:
    """Return ETS that expects first steps of 8 tokens, for use with a room."""
    settings = EtsSettings(rebase_temperature=0.2, lambda_diversity=lambda_diversity)
    return Ets(settings, first_step_tokens=8)


def ask(*names: str) -> list[Question]:
    return [Question(name, ({"role": "user", "content": f"{name}?"},), "1") for name in names]


def countdown(expansion: Expansion, above: str) -> str:
    """Write three steps, the last of which ends the solution."""
    return "step\n" if above.count("\n") < 2 else "done$"


class Memory(Observer):
    def __init__(self) -> None:
        self.growths: dict[str, Growth] = {}
        self.grants: list[tuple[str, Children]] = []
        self.order: list[str] = []

    def started(self, growth: Growth) -> None:
        self.order.append(f"+{growth.question.id}")

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        self.grants.append((growth.question.id, growth.grants))

    def finished(self, growth: Growth) -> None:
        self.order.append(f"-{growth.question.id}")
        self.growths[growth.question.id] = growth


class ByLength:
    """Scores a step by how many characters it has."""

    calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        self.calls += 1
        return [min(1.0, len(candidate.steps[-1]) / 10) for candidate in candidates]


def grow(
    script: ScriptedBackend,
    names: Sequence[str] = ("a",),
    limits: Limits = LIMITS,
    strategy: Strategy | None = None,
    scorer: ByLength | None = None,
    clusterer: Clusterer | None = None,
) -> Memory:
    """Search to the end, by best_of_n where no strategy is given."""
    memory = Memory()
    for growth in search(
        ask(*names), script, scorer, strategy or BestOfN(), limits,
        seed=0, aggregate="last", observer=memory, clusterer=clusterer,
    ):  # fmt: skip
        memory.finished(growth)
    return memory


def test_a_backend_that_only_searches_claims_nothing_else() -> None:
    scripted: Expands = ScriptedBackend(countdown)
    assert not isinstance(scripted, (GivesUpCache, TellsCacheFull, TakesWeights, OnDevice))
    (step,) = scripted.expand([Expansion("a", 0, (1,), 0, 50)])
    assert (step.logprobs, step.temperature) == ((0.0,) * 5, 1.0)


def test_every_branch_grows_until_it_ends() -> None:
    tree = grow(ScriptedBackend(countdown)).growths["a"].tree
    assert [node.depth for node in tree.nodes if node.finished] == [3, 3, 3, 3]
    assert {tree.solution(node.id) for node in tree.nodes if node.finished} == {"step\nstep\ndone"}


def test_kv_tokens_count_every_distinct_prefix_once() -> None:
    growth = grow(ScriptedBackend(countdown)).growths["a"]
    # Prompt 2; four equal branches of 5, then 10, then 15 tokens ("done$" has five). The last token has no KV yet.
    assert growth.kv == [KvCounts(6, 6, 4 * 6), KvCounts(11, 11, 4 * 11), KvCounts(16, 16, 4 * 16)]

    def apart(expansion: Expansion, above: str) -> str:
        return f"of {expansion.node}\n" if "\n" not in above else "done$"

    growth = grow(ScriptedBackend(apart)).growths["a"]
    # Four steps "of 1\n" to "of 4\n" share 3 tokens and have one more each with KV; then 5 each, and "done" below.
    assert growth.kv == [KvCounts(2 + 3 + 4, 5, 4 * 6), KvCounts(2 + 3 + 4 * (2 + 4), 5, 4 * 11)]


def test_a_wave_is_one_call_for_all_questions_in_flight() -> None:
    backend = ScriptedBackend(countdown)
    memory = grow(backend, ("a", "b", "c"))
    assert backend.calls == 6  # a and b together, then c
    assert memory.order == ["+a", "+b", "-a", "-b", "+c", "-c"]


def test_seeds_belong_to_nodes_whatever_runs_beside_them() -> None:
    def seeds(in_flight: int, names: Sequence[str]) -> dict[str, list[int]]:
        seen: dict[str, list[int]] = {}

        def script(expansion: Expansion, above: str) -> str:
            seen.setdefault(expansion.question, []).append(expansion.seed)
            return countdown(expansion, above)

        grow(ScriptedBackend(script), names, Limits(4, 25, 50, 100, in_flight))
        return seen

    alone = seeds(1, ("b",))["b"]
    assert seeds(3, ("a", "b", "c"))["b"] == alone
    assert alone == [node_seed(0, "b", node) for node in range(1, 13)]
    assert len(set(alone)) == 12


def test_finished_leaves_reduce_the_width() -> None:
    def script(expansion: Expansion, above: str) -> str:
        return "end$" if expansion.seed == node_seed(0, "a", 1) else countdown(expansion, above)

    memory = grow(ScriptedBackend(script), strategy=REBASE, scorer=ByLength())
    assert [sum(grants.values()) for _, grants in memory.grants] == [3, 3, 0]


def test_a_branch_that_never_ends_stops_at_its_depth_and_casts_no_vote() -> None:
    memory = grow(ScriptedBackend(lambda expansion, above: "on\n"), limits=Limits(2, 3, 50, 100, 1))
    tree = memory.growths["a"].tree
    assert max(node.depth for node in tree.nodes) == 3
    assert not any(node.finished for node in tree.nodes)


def test_a_branch_stops_at_its_total_tokens() -> None:
    memory = grow(ScriptedBackend(lambda expansion, above: "x" * 40), limits=Limits(1, 25, 16, 40, 1))
    tree = memory.growths["a"].tree
    assert [len(node.tokens) for node in tree.nodes[1:]] == [16, 16, 8]


def test_an_empty_step_cannot_keep_a_branch_alive_for_ever() -> None:
    memory = grow(ScriptedBackend(lambda expansion, above: ""), limits=Limits(1, 5, 16, 40, 1))
    assert len(memory.growths["a"].tree.nodes) == 6


def test_a_strategy_that_drops_a_leaf_releases_its_nodes_and_only_them() -> None:
    backend = ScriptedBackend(countdown)

    def first_only(frontier: Frontier, width: int, room: int | None) -> Children:
        return {frontier.leaves[0]: 2}

    grow(backend, limits=Limits(2, 25, 50, 100, 1), strategy=FunctionStrategy(first_only))
    assert backend.released[0] == ("a", 2)
    assert sorted(node for _, node in backend.released) == list(range(7))  # in the end everything, once


def test_scores_reach_the_strategy_aggregated() -> None:
    seen: list[tuple[float, ...]] = []

    def spy(frontier: Frontier, width: int, room: int | None) -> Children:
        seen.append(frontier.scores)
        return BestOfN().allocate(frontier, width, room)

    grow(
        ScriptedBackend(countdown), strategy=FunctionStrategy(spy), scorer=ByLength(), limits=Limits(2, 25, 50, 100, 1)
    )
    assert seen == [(1.0,), (0.5, 0.5), (0.5, 0.5)]


def test_leaves_that_were_pruned_do_not_count_as_ended() -> None:
    def script(expansion: Expansion, above: str) -> str:
        return "on\n" if above.count("\n") < 3 else "done$"

    def first_only(frontier: Frontier, width: int, room: int | None) -> Children:
        return {frontier.leaves[0]: 2}

    growth = grow(
        ScriptedBackend(script), limits=Limits(2, 25, 50, 100, 1), strategy=FunctionStrategy(first_only)
    ).growths["a"]
    assert growth.ended == [node.id for node in growth.tree.nodes if node.finished]
    assert len(growth.tree.leaves()) > len(growth.ended)


def test_an_empty_prompt_is_refused() -> None:
    question = Question("a", ({"role": "user", "content": ""},), "1")
    with pytest.raises(ConfigError, match="question a has an empty prompt"):
        list(
            search([question], ScriptedBackend(countdown), None, BestOfN(), LIMITS,
                   seed=0, aggregate="last", observer=Memory())
        )  # fmt: skip


def test_a_backend_that_returns_too_few_steps_is_caught() -> None:
    class Short(ScriptedBackend):
        def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
            return super().expand(expansions)[:-1]

    with pytest.raises(BackendError, match="backend Short: expand returned 3 steps for 4 expansions"):
        grow(Short(countdown))


def grow_with(
    strategy: Strategy, script: ScriptedBackend, limits: Limits, clusterer: Clusterer | None = None
) -> Memory:
    return grow(script, ("a", "b"), limits, strategy, ByLength(), clusterer)


def test_steps_are_grouped_once_a_wave_for_all_questions() -> None:
    asked: list[list[list[str]]] = []
    seen: list[dict[int, int]] = []

    def by_place(groups: Sequence[Sequence[str]]) -> list[list[int]]:
        asked.append([list(group) for group in groups])
        return [list(range(len(group))) for group in groups]

    def spy(frontier: Frontier, width: int, room: int | None) -> Children:
        seen.append(dict(frontier.clusters))
        return BestOfN().allocate(frontier, width, room)

    grow_with(FunctionStrategy(spy), ScriptedBackend(countdown), Limits(2, 25, 50, 100, 2), by_place)
    assert asked == [[["step\n"] * 2] * 2] * 2  # two waves with open leaves; the prompts alone are not grouped
    assert seen == [{}, {}, {1: 0, 2: 1}, {1: 0, 2: 1}, {3: 0, 4: 1}, {3: 0, 4: 1}]


def test_a_frontier_of_one_leaf_is_not_grouped() -> None:
    def never(groups: Sequence[Sequence[str]]) -> list[list[int]]:
        raise AssertionError("nobody asked for clusters")

    ets = Ets(EtsSettings(lambda_kv=1.0, lambda_diversity=1.4))
    memory = grow_with(ets, ScriptedBackend(countdown), Limits(1, 25, 50, 100, 2), never)
    assert set(memory.growths) == {"a", "b"}


@pytest.mark.parametrize("room", [12, 13, 20, 31, 50, 77, 1000])
def test_a_tree_never_holds_more_than_its_room(room: int) -> None:
    def script(expansion: Expansion, above: str) -> str:
        if above.count("\n") > 4:
            return "done$"
        return "x" * (expansion.seed % 23) + "\n"  # Longer than expected now and then: cut to what is left.

    memory = grow_with(roomy(0.0), ScriptedBackend(script), Limits(8, 25, 50, 100, 2, room))
    for growth in memory.growths.values():
        assert max(kv.held for kv in growth.kv) <= room
        assert len(growth.tree.nodes) > 1
    if room == 1000:
        free = grow_with(REBASE, ScriptedBackend(script), Limits(8, 25, 50, 100, 2))
        assert memory.growths["a"].tree == free.growths["a"].tree


def test_a_tree_without_room_for_a_token_ends_where_it_stands() -> None:
    script = ScriptedBackend(lambda expansion, above: "1234567\n")
    memory = grow_with(roomy(0.0), script, Limits(4, 25, 50, 100, 2, room=2 + 8 + 3))
    growth = memory.growths["a"]
    # One branch of 8 fits the first wave; 3 tokens are left for its next step, then none.
    assert [len(node.tokens) for node in growth.tree.nodes] == [2, 8, 3]
    assert growth.ended == [2]
    assert growth.out_of_room
    wide = grow_with(roomy(0.0), ScriptedBackend(countdown), Limits(4, 25, 50, 100, 2, room=500))
    assert not wide.growths["a"].out_of_room


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.01, 1.01])
def test_a_score_that_is_none_stops_the_search(bad: float) -> None:
    class Broken(ByLength):
        def score(self, candidates: Sequence[Candidate]) -> list[float]:
            return [bad] * len(candidates)

    with pytest.raises(BackendError, match=r"a step was scored .* 0 to 1.*'step\\n'"):
        grow(ScriptedBackend(countdown), scorer=Broken(), strategy=REBASE)


def test_a_strategy_that_gives_children_to_a_closed_leaf_is_refused_by_name() -> None:
    def backward(frontier: Frontier, width: int, room: int | None) -> Children:
        return {0: 1}

    backend = ScriptedBackend(countdown)
    with pytest.raises(ConfigError, match="strategy backward gave children to node 0, which is not one of the open"):
        grow(backend, strategy=FunctionStrategy(backward))
    assert sorted(backend.released) == [("a", 0), ("a", 1)]  # whatever stood is given back


class Greedy(Strategy):
    """Gives as many children as it was told, whatever the width is."""

    def __init__(self, first: Any, later: Any) -> None:
        super().__init__()
        self.counts = {True: first, False: later}

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        return {frontier.leaves[0]: self.counts[frontier.leaves == (0,)]}


@pytest.mark.parametrize(
    ("first", "later", "said"),
    [
        (5, 1, "Greedy gave 5 children, but the width has 4 left"),
        (4, 5, "Greedy gave 5 children, but the width has 4 left"),
        (-1, 1, "Greedy gave -1 children"),
        (2.5, 1, "Greedy gave 2.5 children to node 0: give whole numbers"),
        ("2", 1, "Greedy gave '2' children to node 0: give whole numbers"),
    ],
)
def test_a_strategy_that_gives_more_than_the_width_or_no_whole_number_is_refused_by_name(
    first: Any, later: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        grow(ScriptedBackend(countdown), strategy=Greedy(first, later))


def test_a_strategy_that_returns_no_mapping_is_refused_by_name() -> None:
    def list_of_leaves(frontier: Frontier, width: int, room: int | None) -> Any:
        return list(frontier.leaves)

    with pytest.raises(ConfigError, match="strategy list_of_leaves returned a list, not children by leaf"):
        grow(ScriptedBackend(countdown), strategy=FunctionStrategy(list_of_leaves))


def test_finished_leaves_count_against_what_a_strategy_may_give() -> None:
    def script(expansion: Expansion, above: str) -> str:
        return "end$" if expansion.seed == node_seed(0, "a", 1) else countdown(expansion, above)

    with pytest.raises(ConfigError, match="Greedy gave 4 children, but the width has 3 left"):
        grow(ScriptedBackend(script), strategy=Greedy(4, 4))


@pytest.mark.parametrize("room", [None, 50])
def test_a_strategy_that_gives_the_prompt_nothing_ends_the_tree_there(room: int | None) -> None:
    memory = grow(ScriptedBackend(countdown), strategy=Greedy(0, 0), limits=Limits(4, 25, 50, 100, 2, room))
    assert len(memory.growths["a"].tree.nodes) == 1
    assert memory.grants == [("a", {})]


def test_a_backend_that_fails_in_the_middle_of_a_wave_is_given_back_every_node_it_was_asked_for() -> None:
    def script(expansion: Expansion, above: str) -> str:
        if expansion.question == "b" and expansion.node == 7:
            raise BackendError("the server is gone")  # Four of its eight children stand by then.
        return "on\n"

    backend = ScriptedBackend(script)
    with pytest.raises(BackendError, match="the server is gone"):
        list(search(ask("a", "b"), backend, None, BestOfN(), LIMITS, seed=0, aggregate="last", observer=Observer()))
    assert sorted(backend.released) == [(question, node) for question in "ab" for node in range(9)]


def test_a_search_that_is_given_up_leaves_no_nodes_behind() -> None:
    backend = ScriptedBackend(lambda expansion, above: "end$" if expansion.question == "a" else "on\n")
    growths = search(ask("a", "b"), backend, None, BestOfN(), LIMITS, seed=0, aggregate="last", observer=Observer())
    assert next(growths).question.id == "a"
    growths.close()
    # Of b the next steps are started as well: its branches do not wait for each other.
    assert sorted(backend.released) == [("a", node) for node in range(5)] + [("b", node) for node in range(9)]


@pytest.mark.parametrize(
    ("strategy", "room"),
    [(Ets(EtsSettings(lambda_kv=1.0, lambda_diversity=1.5, kv_cost="tokens")), None), (roomy(1.5), 60)],
)
def test_steps_that_are_all_alike_and_score_alike_still_grow(strategy: Strategy, room: int | None) -> None:
    def one_cluster(groups: Sequence[Sequence[str]]) -> list[list[int]]:
        return [[0] * len(group) for group in groups]

    memory = grow_with(strategy, ScriptedBackend(countdown), Limits(8, 25, 50, 100, 2, room), one_cluster)
    assert any(node.finished for node in memory.growths["a"].tree.nodes)
