"""Trees do not depend on which steps are done first, and no question waits for another."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from palmette.backends.backend import Expansion, Message, Step
from palmette.backends.scripted import ScriptedBackend
from palmette.errors import BackendError, ConfigError
from palmette.events import Event, WaveDone
from palmette.score.scorer import Candidate
from palmette.search.growth import Growth, Limits, Observer, node_seed
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.search.strategies.beam import Beam
from palmette.search.strategies.best_of_n import BestOfN
from palmette.search.strategies.dvts import Dvts
from palmette.search.strategies.espalier import Espalier, EspalierSettings
from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.search.strategies.fixed_tree import FixedTree, FixedTreeSettings
from palmette.search.strategies.rebase import Rebase
from palmette.search.strategies.shepherd import Shepherd, ShepherdSettings
from palmette.strategy import Children, Frontier, Strategy
from palmette.tasks.task import Question

LIMITS = Limits(width=6, depth=7, step_tokens=30, total_tokens=90, questions_in_flight=3)
NAMES = ("a", "b", "c", "d", "e")
STRATEGIES = {
    "best_of_n": BestOfN(),
    "beam": Beam(),
    "dvts": Dvts(),
    "rebase": Rebase(),
    "fixed_tree": FixedTree(FixedTreeSettings(branches=(3, 2)), width=6),
    "shepherd": Shepherd(ShepherdSettings(completions=2), width=6),
    "ets": Ets(EtsSettings(lambda_kv=1.0, lambda_diversity=1.0)),
    "espalier": Espalier(EspalierSettings()),
    "ets within a room": Ets(EtsSettings(lambda_diversity=0.0), first_step_tokens=8),
}


class Unordered:
    """Finishes steps when `ticks` ticks of them have gone by, at most `rows` steps at a time, in shuffled order."""

    kv_bytes_per_token = 1
    context_tokens: int | None = None

    def __init__(
        self,
        script: Callable[[Expansion, str], str],
        ticks: Callable[[Expansion], int],
        rows: int = 1000,
        seed: int = 0,
    ) -> None:
        self._scripted = ScriptedBackend(script)
        self._ticks = ticks
        self._rows = rows
        self._random = random.Random(seed)
        self.in_flight: list[tuple[Expansion, int]] = []
        self.held: set[tuple[str, int]] = set()
        self.calls = 0

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._scripted.encode(messages)

    def start(self, expansions: Sequence[Expansion]) -> None:
        for expansion in expansions:
            assert expansion.parent == 0 or (expansion.question, expansion.parent) in self.held
            assert expansion.node is not None and (expansion.question, expansion.node) not in self.held
            self.held.add((expansion.question, expansion.node))
            self.in_flight.append((expansion, self._ticks(expansion)))

    def finished(self) -> list[tuple[Expansion, Step]]:
        done: list[Expansion] = []
        while self.in_flight and not done:
            self.calls += 1
            running = self.in_flight[: self._rows]
            done = [expansion for expansion, left in running if left <= 1]
            self.in_flight = [(one, left - 1) for one, left in running if left > 1] + self.in_flight[self._rows :]
        self._random.shuffle(done)
        return list(zip(done, self._scripted.expand(done), strict=True))

    def release(self, question: str, nodes: Sequence[int]) -> None:
        self.in_flight = [
            (one, left) for one, left in self.in_flight if one.question != question or one.node not in nodes
        ]
        self.held -= {(question, node) for node in nodes}


class Delays:
    """Random numbers of ticks, others in each run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, expansion: Expansion) -> int:
        return self._random.randint(1, 9)


class BySum:
    """Scores a step by its text."""

    calls = 0

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        self.kept |= {candidate.messages[-1]["content"] for candidate in candidates}
        return [sum(map(ord, candidate.steps[-1])) % 97 / 97 for candidate in candidates]

    def forget(self, messages: Sequence[Message]) -> None:
        self.kept.discard(messages[-1]["content"])


def script(expansion: Expansion, above: str) -> str:
    """Write a step that depends on its seed: of 1 to 25 characters, one in five the last of its solution."""
    dice = random.Random(expansion.seed)
    return "".join(dice.choice("xyz") for _ in range(dice.randint(1, 25))) + ("$" if dice.random() < 0.2 else "\n")


def ask(*names: str) -> list[Question]:
    return [Question(name, ({"role": "user", "content": f"{name}?"},), "1") for name in names]


def searched(backend: Unordered | ScriptedBackend, strategy: Strategy, limits: Limits) -> dict[str, list[WaveDone]]:
    """Return the waves of every question, as they are recorded."""
    heard: list[Event] = []
    scorer, recorder = BySum(), Recorder(heard.append)
    clusterer = None if limits.room else lambda groups: [[len(text) % 3 for text in group] for group in groups]
    list(
        search(ask(*NAMES), backend, scorer, strategy, limits,
               seed=1, aggregate="mean", observer=recorder, clusterer=clusterer)
    )  # fmt: skip
    assert not scorer.kept
    waves: dict[str, list[WaveDone]] = {name: [] for name in NAMES}
    for event in heard:
        if isinstance(event, WaveDone):
            waves[event.question].append(event)
    return waves


@pytest.mark.parametrize("name", STRATEGIES)
def test_trees_are_the_same_whatever_is_done_first(name: str) -> None:
    limits = replace(LIMITS, room=120) if "room" in name else LIMITS
    together = searched(ScriptedBackend(script), STRATEGIES[name], limits)
    assert len({len(waves) for waves in together.values()}) > 1  # questions of several lengths
    for run in range(10):
        dice = random.Random(run)
        backend = Unordered(script, Delays(run), rows=dice.choice([1, 5, 20, 1000]), seed=run)
        apart = replace(limits, questions_in_flight=dice.randint(1, 5))
        assert searched(backend, STRATEGIES[name], apart) == together
        assert not backend.in_flight and not backend.held


def test_an_independent_step_is_named_by_its_depth_and_its_branch() -> None:
    seen: dict[int, tuple[int, int]] = {}

    def ends_early(expansion: Expansion, above: str) -> str:
        assert expansion.node is not None
        seen[expansion.node] = (expansion.parent, expansion.seed)
        return "$" if expansion.node == 2 or above.count("\n") == 2 else "on\n"

    backend = Unordered(ends_early, lambda one: 1 + 10 * (one.node == 1))
    heard: list[Event] = []
    limits = replace(LIMITS, width=3)
    (growth,) = search(
        ask("a"), backend, None, BestOfN(), limits, seed=0, aggregate="mean", observer=Recorder(heard.append)
    )
    # The second branch ends with its first step; names of the first and third are those of a full tree of width 3.
    assert {node: parent for node, (parent, _) in seen.items()} == {1: 0, 2: 0, 3: 0, 4: 1, 6: 3, 7: 4, 9: 6}
    assert all(seed == node_seed(0, "a", node) for node, (_, seed) in seen.items())
    # In the tree, ids follow the waves without gaps, though the third branch was done before the first had begun.
    waves = [event for event in heard if isinstance(event, WaveDone)]
    assert [[(node.id, node.parent) for node in wave.nodes] for wave in waves] == [
        [(1, 0), (2, 0), (3, 0)], [(4, 1), (5, 3)], [(6, 4), (7, 5)],
    ]  # fmt: skip
    assert growth.ended == [2, 6, 7]


def test_branches_of_best_of_n_do_not_wait_for_each_other() -> None:
    """A branch has 3 steps of 1, 2 and 6 ticks in some order: alone 9 ticks, wave by wave 18."""
    lengths = [(1, 2, 6), (6, 1, 2), (2, 6, 1)]

    def three(expansion: Expansion, above: str) -> str:
        return "on\n" if above.count("\n") < 2 else "$"

    def ticks(expansion: Expansion) -> int:
        assert expansion.node is not None
        depth, branch = divmod(expansion.node - 1, 3)
        return lengths[branch][depth]

    backend = Unordered(three, ticks)
    list(
        search(
            ask("a"), backend, None, BestOfN(), replace(LIMITS, width=3), seed=0, aggregate="mean", observer=Observer()
        )
    )
    assert backend.calls == 9


@pytest.mark.parametrize("strategy", [Rebase(), BestOfN()])
def test_a_slow_question_does_not_hold_up_the_others(strategy: Strategy) -> None:
    """Steps of one question take 20 ticks, those of the others one: these end after as many ticks as without it."""

    def three(expansion: Expansion, above: str) -> str:
        return "on\n" if above.count("\n") < 2 else "$"

    class Ends(Observer):
        def __init__(self, backend: Unordered) -> None:
            self.backend, self.at = backend, dict[str, int]()

        def wave_done(self, growth: Growth, added: object) -> None:
            self.at[growth.question.id] = self.backend.calls

    def ended_at(*names: str) -> dict[str, int]:
        backend = Unordered(three, lambda one: 20 if one.question == "slow" else 1)
        ends = Ends(backend)
        list(search(ask(*names), backend, BySum(), strategy, LIMITS, seed=0, aggregate="mean", observer=ends))
        return ends.at

    assert ended_at("a", "b") == {"a": 3, "b": 3}
    assert ended_at("slow", "a", "b") == {"slow": 60, "a": 3, "b": 3}


@pytest.mark.parametrize("strategy", [Rebase(), BestOfN()])
@pytest.mark.parametrize("failing", [1, 4, 9])
def test_a_backend_that_fails_is_left_with_nothing(strategy: Strategy, failing: int) -> None:
    class Fails(Unordered):
        def finished(self) -> list[tuple[Expansion, Step]]:
            done = super().finished()
            if self.calls > failing:
                raise KeyError("gone")
            return done

    backend, scorer = Fails(script, lambda one: 1 + one.seed % 5), BySum()
    with pytest.raises(BackendError, match="backend Fails failed in finished: KeyError"):
        list(search(ask(*NAMES), backend, scorer, strategy, LIMITS, seed=0, aggregate="mean", observer=Observer()))
    assert not backend.in_flight and not backend.held and not scorer.kept


class Odd(Unordered):
    """Changes what `finished` returns."""

    def __init__(self, change: Callable[[list[tuple[Expansion, Step]]], object]) -> None:
        super().__init__(script, lambda one: 1)
        self._change = change

    def finished(self) -> list[tuple[Expansion, Step]]:
        return self._change(super().finished())  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda done: [], "finished returned no step, with 18 in flight: expected one step or more"),
        (lambda done: [step for _, step in done], "finished returned .*: expected pairs of an expansion and its step"),
        (lambda done: [done[0], *done], "a step of node . of question .: expected each step that was started, once"),
        (lambda done: [(replace(done[0][0], node=99), done[0][1])], "a step of node 99 of question .: expected each"),
        (lambda done: [(done[0][0], "x")], "a step is 'x' .str.: expected a palmette.Step"),
        (lambda done: None, "failed in finished: TypeError"),
    ],
)  # fmt: skip
def test_a_backend_that_breaks_its_word_is_told_so(change: Callable[[object], object], said: str) -> None:
    backend = Odd(change)
    with pytest.raises(BackendError, match=f"backend Odd.*{said}"):
        list(search(ask(*NAMES), backend, None, BestOfN(), LIMITS, seed=0, aggregate="mean", observer=Observer()))
    assert not backend.in_flight and not backend.held


def test_a_strategy_that_is_not_as_independent_as_it_says_is_refused() -> None:
    class First(BestOfN):
        def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
            return {0: width} if frontier.leaves == (0,) else {frontier.leaves[0]: 1}

    with pytest.raises(ConfigError, match="strategy First is independent, but did not give each of . open leaves one"):
        searched(ScriptedBackend(script), First(), LIMITS)
