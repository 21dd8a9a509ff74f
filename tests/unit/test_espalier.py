"""Espalier: leaves that have found the same are one, hand-worked; REBASE and ETS where none are."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from palmette.config import load_config
from palmette.search.strategies.espalier import (
    Espalier,
    EspalierSettings,
    finding,
    findings,
    joined,
    rare_tokens,
)
from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.search.strategies.rebase import Rebase, RebaseSettings
from palmette.strategy import Frontier
from palmette.tree import Node, Tree

ONE, TWO = "Tom has 3+4=7 cups.\n", "Mia has 2*5=10 hats.\n"
ONE_AGAIN, TWO_AGAIN = "With 3 and 4 cups we get 3+4=7 for Tom.\n", "So 5*2=10 hats.\n"
WRONG = "Tom has 3+4=8 cups.\n"


def frontier_of(paths: list[tuple[str, ...]], scores: list[float]) -> Frontier:
    """Return a frontier of paths below the prompt; every character of a step is a token."""
    tree = Tree((1, 2, 3))
    leaves = []
    for path in paths:
        above = 0
        for text in path:
            above = tree.add(above, tuple(map(ord, text)), text, (0.0,) * len(text), finished=False).id
        leaves.append(above)
    return Frontier(tree, tuple(leaves), tuple(scores))


def step(text: str, tokens: tuple[int, ...] = ()) -> Node:
    return Node(1, 0, 1, tokens, text, (0.0,) * len(tokens), finished=False)


def espalier(weight: float, most: int | None = None) -> Espalier:
    return Espalier(EspalierSettings(lambda_held=weight, kept_alike=most), width=16)


def test_what_a_step_has_found_are_its_numbers_and_the_last_of_them() -> None:
    def found(text: str) -> tuple[str | int, ...]:
        return finding(step(text))

    assert found(ONE) == found(ONE_AGAIN) == ("3", "4", "7", "7")
    assert found("7-3=4") == ("3", "4", "7", "4")
    assert found(WRONG) != found(ONE)
    assert found("1,200 of 3.50") == ("1200", "3.50", "3.50")
    assert found("Step 2: 3+4=7") == found("**Step 12:** 3+4=7") == found("5. 3+4=7") == found(ONE)
    assert found("3.5 times 2 is 7.") == ("2", "3.5", "7", "7")  # No number of a step: part of a number.
    assert found("So we add.") == found("so  WE add.\n") != found("So we take.")


def test_a_step_without_numbers_has_found_the_rare_tokens_of_the_question_that_it_names_in_their_order() -> None:
    # 64 tokens: 7 comes three times, which is more than a 32nd of them; 8 twice, 9 once.
    tree = Tree((7, 7, 7, 8, 8, 9, *range(100, 158)))
    names = rare_tokens(tree)
    assert {8, 9, 100} <= names and 7 not in names
    needed = step("To find a we need b.", (1, 7, 8, 2, 7, 9))
    assert finding(needed, names) == finding(step("As for a, it takes b.", (3, 8, 4, 7, 9, 5)), names) == (8, 9)
    assert finding(step("To find b we need a.", (1, 7, 9, 2, 7, 8)), names) == (9, 8)
    assert finding(step("It has 5 of a.", (8,)), names) == ("5", "5")
    assert finding(step("So be it.", (1, 2, 7)), names) == ("", "so", "be", "it.")


def test_order_words_and_repetition_do_not_change_what_a_path_has_found() -> None:
    frontier = frontier_of([(ONE, TWO), (TWO_AGAIN, ONE_AGAIN), (ONE, TWO, ONE_AGAIN), (ONE, WRONG)], [0.5] * 4)
    first, second, third, wrong = (findings(frontier.tree, leaf) for leaf in frontier.leaves)
    assert first == second == third != wrong


def test_shares_of_leaves_that_have_found_the_same_are_added() -> None:
    # Three leaves of equal score, two of which are the same: weights 2 and 1, so 4 and 2 of six children. REBASE gives
    # each leaf two. The best of the two goes on: equal scores, so the older.
    frontier = frontier_of([(ONE, TWO), (WRONG,), (TWO_AGAIN, ONE_AGAIN)], [0.5, 0.5, 0.5])
    first, wrong, _ = frontier.leaves
    assert espalier(0.0).allocate(frontier, 6, None) == {first: 4, wrong: 2}
    assert Rebase(RebaseSettings()).allocate(frontier, 6, None) == dict.fromkeys(frontier.leaves, 2)


def test_the_best_of_the_same_goes_on() -> None:
    frontier = frontier_of([(ONE, TWO), (TWO_AGAIN, ONE_AGAIN)], [0.4, 0.6])
    assert espalier(2.0).allocate(frontier, 5, None) == {frontier.leaves[1]: 5}


def test_several_of_the_same_share_their_weight_the_best_first_and_equal_tokens_count_once() -> None:
    # Weights 4 and 1, so 8 and 2 of ten children. The second leaf repeats the first, token for token.
    third = ONE[:-1] + " \n"
    frontier = frontier_of([(ONE,), (ONE,), (ONE_AGAIN,), (third,), (WRONG,)], [0.5, 0.5, 0.5, 0.5, 0.5])
    first, _, again, other, wrong = frontier.leaves
    assert espalier(0.0, 1).allocate(frontier, 10, None) == {first: 8, wrong: 2}
    assert espalier(0.0, 2).allocate(frontier, 10, None) == {first: 4, again: 4, wrong: 2}
    # 4/3 each of 5: ceil(10 x 0.267), of what is left ceil(7 x 0.364) and ceil(4 x 0.571), and the rest.
    assert espalier(0.0, 3).allocate(frontier, 10, None) == {first: 3, again: 3, other: 3, wrong: 1}
    assert espalier(0.0, 9).allocate(frontier, 10, None) == espalier(0.0, 3).allocate(frontier, 10, None)
    better = replace(frontier, scores=(0.5, 0.5, 0.5, 0.6, 0.5))
    assert set(espalier(0.0, 1).allocate(better, 10, None)) == {other, wrong}


def test_by_default_wide_searches_weigh_memory_less_and_keep_more_of_the_same() -> None:
    def chosen(width: int) -> tuple[float, int]:
        strategy = Espalier(EspalierSettings(), width=width)
        return strategy.weight, strategy.most_alike

    assert [chosen(width) for width in (1, 16, 32, 64, 128, 256)] == [
        (1.0, 1), (1.0, 1), (0.5, 1), (0.25, 2), (0.125, 2), (0.0625, 4),
    ]  # fmt: skip
    assert Espalier(EspalierSettings(lambda_held=0.0, kept_alike=3), width=64).weight == 0.0
    assert Espalier(EspalierSettings(lambda_held=0.0, kept_alike=3), width=64).most_alike == 3


def test_what_many_branches_agree_on_beats_one_that_scores_better() -> None:
    # At a temperature of 0.2 the leaf with 0.6 weighs exp(3) = 20.1, five leaves with 0.5 weigh 5 exp(2.5) = 60.9.
    wordings = [f"{ONE[:-1]}{' ' * count}\n" for count in range(5)]
    frontier = frontier_of([*((text,) for text in wordings), (WRONG,)], [0.5] * 5 + [0.6])
    children = espalier(0.0).allocate(frontier, 16, None)
    assert children == {frontier.leaves[0]: 13, frontier.leaves[5]: 3}  # ceil(16 x 60.9 / 81) = 13


numbers = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@given(
    st.lists(st.tuples(numbers, st.floats(0, 1)), min_size=1, max_size=12),
    st.integers(1, 20),
    st.floats(0, 3),
    st.integers(1, 3),
)
def test_children_sum_to_the_width_and_only_so_many_leaves_that_have_found_the_same_get_any(
    branches: list[tuple[list[int], float]], width: int, weight: float, most: int
) -> None:
    frontier = frontier_of(
        [tuple(f"{number} {place}\n" for number in path) for place, (path, _) in enumerate(branches)],
        [score for _, score in branches],
    )
    children = espalier(weight, most).allocate(frontier, width, None)
    assert sum(children.values()) == width
    found = Counter(findings(frontier.tree, leaf) for leaf in children)
    assert max(found.values()) <= most


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 20), st.sampled_from([0.0, 0.8, 1.25, 2.0]))
def test_where_nothing_is_the_same_it_is_ets_without_clusters(scores: list[float], width: int, weight: float) -> None:
    frontier = frontier_of([(f"{place}+1={place + 1}\n",) for place in range(len(scores))], scores)
    ets = Ets(EtsSettings(lambda_kv=weight, lambda_diversity=0.0, kv_cost="tokens"))
    assert espalier(weight).allocate(frontier, width, None) == ets.allocate(frontier, width, None)


def test_within_a_room_only_what_is_kept_takes_place() -> None:
    # Prompt 3; two paths that have found the same, of 20 + 21 and 17 + 40 tokens, one of 20 with another result, which
    # shares the first 12 of them. The next step is expected to take 50. The two that differ and three children take
    # 3 + 41 + 8 + 150 = 202; in 152 there is room for two children.
    frontier = frontier_of([(ONE, TWO), (WRONG,), (TWO_AGAIN, ONE_AGAIN)], [0.5, 0.5, 0.5])
    first, wrong, _ = frontier.leaves
    assert (len(ONE), len(TWO), len(WRONG), len(ONE_AGAIN)) == (20, 21, 20, 40)
    assert espalier(2.0).allocate(frontier, 3, 202) == {first: 2, wrong: 1}
    assert espalier(2.0).allocate(frontier, 3, 152) == {first: 2}
    assert espalier(2.0).allocate(frontier, 3, 30) == {wrong: 1}


def test_it_needs_no_embedder_and_its_weight_is_its_own_beside_that_of_ets() -> None:
    assert espalier(2.0).uses == {"scores", "room"}
    config = load_config(None, {"search.strategy": "espalier", "search.lambda_kv": 9.0, "search.kv_budget": "1GiB"})
    assert config.search.build_strategy().settings == EspalierSettings()


def test_joined_leaves_keep_their_order_and_weigh_as_much_as_before() -> None:
    frontier = frontier_of([(WRONG,), (ONE,), (ONE_AGAIN,)], [0.2, 0.1, 0.3])
    merged = joined(frontier, 0.2)
    assert merged.leaves == (frontier.leaves[0], frontier.leaves[2])
    assert Rebase(RebaseSettings()).allocate(merged, 100, None)[frontier.leaves[2]] == 70
    # exp(0.1/0.2) + exp(0.3/0.2) = 6.13 beside exp(0.2/0.2) = 2.72: 69.3 of 100, rounded up to 70.
