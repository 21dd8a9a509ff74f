import math
import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.search.strategies.beam import Beam
from palmette.search.strategies.best_of_n import BestOfN
from palmette.search.strategies.dvts import Dvts
from palmette.search.strategies.fixed_tree import FixedTree, FixedTreeSettings
from palmette.search.strategies.rebase import Rebase, RebaseSettings, share
from palmette.strategy import Frontier, Strategy, spread
from palmette.tree import Tree

REBASE = Rebase(RebaseSettings(rebase_temperature=0.2))
ALL: list[Strategy] = [BestOfN(), Beam(), Dvts(), REBASE]


def fan(*scores: float) -> Frontier:
    """Return a frontier of leaves that hang on the prompt, one for each score."""
    tree = Tree((1, 2))
    leaves = tuple(tree.add(0, (3,), "", (0.0,), finished=False).id for _ in scores)
    return Frontier(tree, leaves, scores)


@pytest.mark.parametrize("strategy", ALL)
def test_the_prompt_alone_gets_the_whole_width(strategy: Strategy) -> None:
    assert strategy.allocate(Frontier(Tree((1,)), (0,), (1.0,)), 16, None) == {0: 16}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 64), st.sampled_from(range(1, 4)))
def test_children_are_at_most_the_width_and_only_for_leaves(scores: list[float], width: int, which: int) -> None:
    frontier = fan(*scores)
    children = ALL[which].allocate(frontier, width, None)
    assert sum(children.values()) == width
    assert set(children) <= set(frontier.leaves)
    assert all(count > 0 for count in children.values())


def test_best_of_n_never_branches_after_the_prompt() -> None:
    assert BestOfN().allocate(fan(0.9, 0.1, 0.5), 3, None) == {1: 1, 2: 1, 3: 1}


def test_beam_keeps_the_root_of_the_width_and_shares_evenly() -> None:
    # Width 16 keeps the best 4; width 10 keeps 4 and the older of the best take the rest.
    frontier = fan(0.1, 0.9, 0.8, 0.7, 0.6, 0.5)
    assert Beam().allocate(frontier, 16, None) == {2: 4, 3: 4, 4: 4, 5: 4}
    assert Beam().allocate(frontier, 10, None) == {2: 3, 3: 3, 4: 2, 5: 2}
    assert Beam().allocate(frontier, 1, None) == {2: 1}


def test_dvts_keeps_the_best_of_each_subtree_and_never_crosses() -> None:
    # Nine children of the prompt make three subtrees: 1-3, 4-6, 7-9.
    frontier = fan(0.9, 0.95, 0.8, 0.1, 0.2, 0.3, 0.5, 0.4, 0.45)
    assert Dvts().allocate(frontier, 9, None) == {2: 3, 7: 3, 6: 3}
    # The next wave hangs below 2 and 6 alone; both subtrees keep one leaf though 6's are worse.
    tree = frontier.tree
    leaves = tuple(tree.add(parent, (4,), "", (0.0,), finished=False).id for parent in (2, 2, 6))
    assert Dvts().allocate(Frontier(tree, leaves, (0.9, 0.8, 0.1)), 6, None) == {leaves[0]: 3, leaves[2]: 3}


def test_a_fixed_tree_gives_each_depth_its_branches_and_one_below() -> None:
    strategy = FixedTree(FixedTreeSettings(branches=(3, 2)), width=6)
    tree = Tree((1,))
    assert strategy.allocate(Frontier(tree, (0,), (1.0,)), 6, None) == {0: 3}
    first = [tree.add(0, (3,), "", (0.0,), finished=place == 1).id for place in range(3)]
    # The second first step has ended: 6 - 1 are left for the others, which need 4.
    assert strategy.allocate(Frontier(tree, (first[0], first[2]), (0.1, 0.9)), 5, None) == {first[0]: 2, first[2]: 2}
    second = tuple(tree.add(parent, (4,), "", (0.0,), finished=False).id for parent in (1, 1, 3, 3))
    assert strategy.allocate(Frontier(tree, second, (0.0,) * 4), 5, None) == dict.fromkeys(second, 1)


def test_a_fixed_tree_refuses_a_width_in_which_it_would_have_to_prune() -> None:
    with pytest.raises(ConfigError, match="branches 6-6-6 has 216 leaves, the width is 16: set search.width to 216"):
        FixedTree(FixedTreeSettings(branches=(6, 6, 6)))
    assert FixedTree(FixedTreeSettings(branches=(6, 6, 6)), width=216).uses == frozenset()
    with pytest.raises(ConfigError, match="search.branches.*1 or more branches for each depth"):
        load_config(None, {"search.strategy": "fixed_tree", "search.branches": [2, 0]})
    config = load_config(None, {"search.strategy": "fixed_tree", "search.branches": [2, 3], "search.width": 6})
    assert config.search.build_strategy().settings.branches == (2, 3)
    with pytest.raises(ConfigError, match="set search.width to 16, or search.branches to fewer"):
        load_config(None, {"search.strategy": "fixed_tree", "search.width": 8})


def test_rebase_equals_a_hand_worked_case() -> None:
    # Weights exp(0), exp(-1), exp(-2) = 1, .3679, .1353 at temperature 0.1; of 10: ceil(6.652) = 7,
    # ceil(3 x .3679 / .5032 = 2.193) = 3, nothing left for the third.
    ranked = [(5, 0.5), (6, 0.4), (7, 0.3)]
    assert share(ranked, 10, 0.1) == {5: 7, 6: 3}


def test_rebase_shares_equal_scores_evenly_with_the_older_node_first() -> None:
    assert REBASE.allocate(fan(0.5, 0.5, 0.5), 4, None) == {1: 2, 2: 1, 3: 1}


def test_rebase_stands_scores_that_differ_by_more_than_floats_can_weigh() -> None:
    assert share([(1, 1.0), (2, 0.0)], 8, 1e-6) == {1: 8}


def tied_frontiers() -> Iterator[tuple[list[tuple[int, float]], int, float]]:
    """2,000 frontiers of up to 64 leaves that share one to four scores, with widths that leave many a tie whole."""
    generator = random.Random(11)
    for _ in range(2_000):
        scores = [generator.random() for _ in range(generator.randint(1, 4))]
        leaves = sorted((generator.choice(scores) for _ in range(generator.randint(2, 64))), reverse=True)
        yield list(enumerate(leaves)), len(leaves) * generator.randint(1, 8), generator.choice([0.05, 0.1, 0.2, 1.0])


def test_rebase_shares_among_tied_leaves_as_on_paper() -> None:
    for ranked, width, temperature in tied_frontiers():
        weights = [Fraction(math.exp((score - ranked[0][1]) / temperature)) for _, score in ranked]
        expected, left = {}, width
        for place, (leaf, _) in enumerate(ranked):
            count = math.ceil(left * weights[place] / sum(weights[place:])) if left else 0
            expected.update({leaf: count} if count else {})
            left -= count
        assert share(ranked, width, temperature) == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 300), st.floats(0.01, 2))
def test_rebase_hands_out_the_width_exactly(scores: list[float], width: int, temperature: float) -> None:
    ranked = sorted(enumerate(scores), key=lambda pair: (-pair[1], pair[0]))
    children = share(ranked, width, temperature)
    assert sum(children.values()) == width
    best = ranked[0]
    total = sum(math.exp((score - best[1]) / temperature) for score in scores)
    assert children[best[0]] >= width / total - 1e-9


def test_what_does_not_divide_goes_to_the_first() -> None:
    assert spread([4, 9, 2], 8) == {4: 3, 9: 3, 2: 2}
    assert spread([4, 9, 2], 2) == {4: 1, 9: 1}
