import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from palmette.search.strategies import ets, rebase
from palmette.search.strategies.ets import CostModel, Ets, EtsSettings
from palmette.search.strategies.rebase import Rebase, RebaseSettings
from palmette.strategy import Frontier
from palmette.tree import Tree

PROMPT = tuple(range(10))
REBASE = Rebase(RebaseSettings(rebase_temperature=0.2))


def weighted(lambda_kv: float, lambda_diversity: float, cost: CostModel) -> Ets:
    """Return ETS at temperature 0.2 with these weights; they count where there is no room to keep to."""
    settings = EtsSettings(rebase_temperature=0.2, lambda_kv=lambda_kv, lambda_diversity=lambda_diversity, kv_cost=cost)
    return Ets(settings)


def roomy(lambda_diversity: float, first_step_tokens: int) -> Ets:
    """Return ETS at temperature 0.2 that expects first steps to be so long, for use with a room."""
    settings = EtsSettings(rebase_temperature=0.2, lambda_diversity=lambda_diversity)
    return Ets(settings, first_step_tokens=first_step_tokens)


def by_first_letter(frontier: Frontier) -> Frontier:
    """Return the frontier with leaves labeled by how their last steps begin."""
    return replace(frontier, clusters={leaf: ord(frontier.tree.nodes[leaf].text[0]) for leaf in frontier.leaves})


def grown(*steps: tuple[int, int, str], scores: tuple[float, ...]) -> Frontier:
    """Return the frontier of a tree of steps (parent, tokens, text); the leaves are the last steps, one a score.

    No two steps have a token in common.
    """
    tree = Tree(PROMPT)
    for number, (parent, tokens, text) in enumerate(steps):
        tree.add(parent, (number,) * tokens, text, (), finished=False)
    leaves = tuple(range(len(tree.nodes) - len(scores), len(tree.nodes)))
    return Frontier(tree, leaves, scores)


def random_frontier(seed: int, width: int = 8, waves: int = 4) -> Frontier:
    """Return the frontier of a random tree in which siblings often begin alike, and some are copies."""
    rng = random.Random(seed)
    tree = Tree(PROMPT)
    frontier = Frontier(tree, (0,), (1.0,))
    for _ in range(rng.randint(1, waves)):
        grants = rebase.share(frontier.ranked(), width, rng.choice((0.1, 0.2, 0.5)))
        leaves = tuple(
            tree.add(parent, *random_step(rng), (), finished=False).id
            for parent, count in grants.items()
            for _ in range(count)
        )
        open_leaves = tuple(leaf for leaf in leaves if rng.random() < 0.9) or leaves[:1]
        # Scores on a coarse grid, so that leaves tie.
        frontier = Frontier(tree, open_leaves, tuple(rng.randint(0, 10) / 10 for _ in open_leaves))
    return frontier


def random_step(rng: random.Random) -> tuple[tuple[int, ...], str]:
    """Return the tokens and the text of a step: the same letter first for the same tokens, as an embedder would."""
    text = rng.choice("abcd") + rng.choice(("", "x", "y", "xy", str(rng.random())))
    return (*map(ord, text), *[0] * (len(text) % 7), 10), text


def held(frontier: Frontier, kept: tuple[int, ...], cost: CostModel) -> int:
    """Count the distinct nodes (by the tokens of their paths) or the distinct prefixes on the paths, by brute force."""
    tree = frontier.tree
    if cost == "nodes":
        return len({tree.path_tokens(step.id) for leaf in kept for step in tree.path(leaf)})
    paths = [tree.path_tokens(leaf) for leaf in kept]
    return len({path[:end] for path in paths for end in range(1, len(path) + 1)})


def all_sets(leaves: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(leaves) + 1):
        yield from combinations(leaves, size)


WEIGHTED = [(1.0, 0.0, "nodes"), (2.0, 1.4, "nodes"), (1.0, 1.5, "tokens"), (3.0, 0.5, "tokens")]


def test_a_tree_of_the_published_code_gets_what_it_got() -> None:
    # Width 4, lambda_kv 2, lambda_diversity 1.5 at temperature 0.2: PuLP and CBC kept 5, 6, 7 at 0.75, REBASE then
    # gave 3 children to 7 and 1 to 5. By hand: all shares, 7 of the 8 nodes on paths (node 2 is on none), all clusters.
    frontier = grown(
        (0, 15, ""), (0, 87, ""), (1, 45, ""), (3, 62, ""),
        (4, 69, "c"), (4, 41, "d"), (4, 57, "a"), (4, 43, "a again"),
        scores=(0.5996999509783331, 0.3116427306603125, 0.6774379845742146, 0.43343358267968013),
    )  # fmt: skip
    frontier = by_first_letter(frontier)
    children = rebase.share(frontier.ranked(), 4, 0.2)
    found = ets.worthwhile(frontier, children, 2.0, 1.5, "nodes")
    assert found.leaves == (5, 6, 7)
    assert found.worth == 1 - 2 * 7 / 8 + 1.5
    assert weighted(2.0, 1.5, "nodes").allocate(frontier, 4, None) == {7: 3, 5: 1}


@pytest.mark.parametrize(("lambda_kv", "lambda_diversity", "cost"), WEIGHTED)
def test_the_set_maximizes_the_published_objective(lambda_kv: float, lambda_diversity: float, cost: CostModel) -> None:
    for seed in range(60):
        frontier = by_first_letter(random_frontier(seed))
        children = rebase.share(frontier.ranked(), 8, 0.2)
        found = ets.worthwhile(frontier, children, lambda_kv, lambda_diversity, cost)
        worths = {
            kept: published_worth(frontier, children, kept, lambda_kv, lambda_diversity, cost)
            for kept in all_sets(frontier.leaves)
        }
        assert worths[found.leaves] == pytest.approx(max(worths.values()), abs=1e-12), seed
        assert found.worth == pytest.approx(worths[found.leaves], abs=1e-12), seed


def published_worth(
    frontier: Frontier,
    children: dict[int, int],
    kept: tuple[int, ...],
    lambda_kv: float,
    lambda_diversity: float,
    cost: CostModel,
) -> float:
    letters = {leaf: frontier.tree.nodes[leaf].text[0] for leaf in frontier.leaves}
    worth = sum(children.get(leaf, 0) for leaf in kept) / sum(children.values())
    worth -= lambda_kv * held(frontier, kept, cost) / held(frontier, frontier.leaves, cost)
    if len(letters) > 1:
        worth += lambda_diversity * len({letters[leaf] for leaf in kept}) / len(set(letters.values()))
    return worth


@pytest.mark.parametrize("cost", ["nodes", "tokens"])
def test_with_both_weights_zero_it_is_rebase_and_asks_for_no_clusters(cost: CostModel) -> None:
    for seed in range(150):
        frontier = by_first_letter(random_frontier(seed, width=24))
        for width in (1, 7, 24):
            assert weighted(0.0, 0.0, cost).allocate(frontier, width, None) == REBASE.allocate(frontier, width, None)


@pytest.mark.parametrize(("lambda_kv", "lambda_diversity", "cost"), WEIGHTED)
def test_children_sum_to_the_width_and_go_to_leaves(lambda_kv: float, lambda_diversity: float, cost: CostModel) -> None:
    for seed in range(80):
        frontier = by_first_letter(random_frontier(seed, width=16))
        for width in (1, 5, 16):
            children = weighted(lambda_kv, lambda_diversity, cost).allocate(frontier, width, None)
            assert sum(children.values()) == width
            assert set(children) <= set(frontier.leaves)
            assert all(count > 0 for count in children.values())


def test_a_frontier_of_one_leaf_gets_all() -> None:
    alone = grown((0, 3, "only"), scores=(0.1,))
    prompt = Frontier(Tree(PROMPT), (0,), (1.0,))
    assert weighted(1.0, 1.4, "tokens").allocate(alone, 16, None) == {1: 16}
    assert weighted(1.0, 1.4, "nodes").allocate(prompt, 16, None) == {0: 16}
    assert roomy(1.4, 5).allocate(prompt, 16, 10 + 3 * 5) == {0: 3}


def test_steps_that_are_all_alike_share_one_cluster() -> None:
    frontier = grown((0, 3, "same"), (0, 3, "same"), (0, 3, "same"), scores=(0.5, 0.5, 0.5))
    # All of the bonus is earned by the first leaf. Each other one brings 2/6 for 1/4 at weight 1, 1/2 at weight 2.
    assert weighted(1.0, 1.4, "nodes").allocate(by_first_letter(frontier), 6, None) == {1: 2, 2: 2, 3: 2}
    assert weighted(2.0, 1.4, "nodes").allocate(by_first_letter(frontier), 6, None) == {1: 6}


def copied(*steps: tuple[int, str], scores: tuple[float, ...]) -> Frontier:
    """Return the frontier of a tree of steps (parent, text), a token for each letter; the leaves are the last steps."""
    tree = Tree(PROMPT)
    for parent, text in steps:
        tree.add(parent, tuple(map(ord, text)), text, (), finished=False)
    leaves = tuple(range(len(tree.nodes) - len(scores), len(tree.nodes)))
    return Frontier(tree, leaves, scores)


def test_equal_siblings_are_one_leaf_with_their_shares_added() -> None:
    # Leaves 1 and 3 are copies: 2 + 2 of 6 children for one node of three. Apart, each of them would cost 2/4 for 2/6.
    frontier = copied((0, "abc"), (0, "xyz"), (0, "abc"), scores=(0.5, 0.5, 0.5))
    children = rebase.share(frontier.ranked(), 6, 0.2)
    assert children == {1: 2, 2: 2, 3: 2}
    found = ets.worthwhile(frontier, children, 2.0, 0.0, "nodes")
    assert found.leaves == (1, 3)
    assert found.worth == pytest.approx(4 / 6 - 2 * 2 / 3)
    # All copies get their children by REBASE.
    assert weighted(2.0, 0.0, "nodes").allocate(frontier, 5, None) == {1: 3, 3: 2}


def test_below_equal_steps_equal_steps_are_copies_too() -> None:
    # 1 and 2 are copies, 3 and 4 below them too: prompt, "ab", "cd", "ce" are the nodes, 10 + 2 + 2 + 1 tokens.
    frontier = copied((0, "ab"), (0, "ab"), (1, "cd"), (2, "cd"), (2, "ce"), scores=(0.5, 0.5, 0.5))
    children = {3: 1, 4: 1, 5: 1}
    costs: list[tuple[CostModel, int, int]] = [("nodes", 4, 3), ("tokens", 15, 14)]
    for cost, all_of_it, two in costs:
        found = ets.worthwhile(frontier, children, 6.0, 0.0, cost)
        assert found.leaves == (3, 4)
        assert found.worth == pytest.approx(2 / 3 - 6 * two / all_of_it)
        assert ets.worthwhile(frontier, children, 0.1, 0.0, cost).leaves == (3, 4, 5)


def test_a_room_holds_a_prefix_that_siblings_share_once() -> None:
    # Prompt 10, "abcdefg" 7 tokens shared and one more each: 10 + 7 + 2, and two steps of 5.
    frontier = copied((0, "abcdefgh"), (0, "abcdefgi"), (0, "abcdefgh"), scores=(0.5, 0.5, 0.5))
    children = {1: 1, 2: 1, 3: 1}
    kept = [ets.affordable(frontier, children, 0.0, 5, room) for room in (22, 23, 28, 29)]
    assert [found and found.leaves for found in kept] == [None, (1, 3), (1, 3), (1, 2, 3)]


def test_memory_that_costs_prunes_the_branch_of_the_weak_leaf() -> None:
    # Shares of 4 at temperature 0.2: leaf 3 takes 3, leaf 4 takes 1. Five nodes cost 1/5 each: leaf 4 holds two of
    # its own, 1/4 - 2/5 < 0. With weight 1/2 it stays: 1/4 - 1/5 > 0.
    frontier = grown((0, 5, ""), (0, 5, ""), (1, 5, "a"), (2, 5, "b"), scores=(0.6, 0.4))
    assert weighted(1.0, 0.0, "nodes").allocate(frontier, 4, None) == {3: 4}
    assert weighted(0.5, 0.0, "nodes").allocate(frontier, 4, None) == {3: 3, 4: 1}


def test_diversity_keeps_what_memory_alone_would_prune() -> None:
    # As above, but the second cluster earns 0.4 / 2 = 0.2 > 2/5 - 1/4.
    frontier = by_first_letter(grown((0, 5, ""), (0, 5, ""), (1, 5, "a"), (2, 5, "b"), scores=(0.6, 0.4)))
    assert weighted(1.0, 0.4, "nodes").allocate(frontier, 4, None) == {3: 3, 4: 1}
    assert weighted(1.0, 0.2, "nodes").allocate(frontier, 4, None) == {3: 4}


def test_tokens_weigh_long_steps_more_than_nodes_do() -> None:
    # Three leaves on the prompt of 10 tokens. By nodes each costs 1/4: only the best share of 2/4 pays.
    # By tokens 1: 18/30 for the long one, 1/30 for the short ones with shares of 1/4.
    frontier = grown((0, 18, "a"), (0, 1, "b"), (0, 1, "c"), scores=(0.5, 0.5, 0.5))
    children = {1: 2, 2: 1, 3: 1}
    assert ets.worthwhile(frontier, children, 1.0, 0.0, "nodes").leaves == (1, 2, 3)
    assert ets.worthwhile(frontier, children, 1.1, 0.0, "nodes").leaves == (1,)
    assert ets.worthwhile(frontier, children, 1.0, 0.0, "tokens").leaves == (2, 3)
    # The prompt's 10 tokens are part of the whole: 2/4 - 12/30.
    assert ets.worthwhile(frontier, children, 1.0, 0.0, "tokens").worth == pytest.approx(0.5 - 12 / 30)


def test_a_tie_on_paper_is_a_tie_in_the_solver() -> None:
    # 48 nodes at weight 1: three nodes cost exactly one child of 16. In floats 3 x 1/48 is not 1/16.
    steps = [(0, 1, "")] * 15 + [(node, 1, "") for node in range(1, 16)] + [(node, 1, "x") for node in range(16, 31)]
    frontier = grown(*steps, (0, 1, "y"), (0, 1, "y"), scores=(0.5,) * 17)
    children = dict.fromkeys(frontier.leaves[:16], 1)
    kept = ets.worthwhile(frontier, children, 1.0, 0.0, "nodes")
    assert kept.leaves == frontier.leaves[:16]


def test_a_run_repeats_whatever_the_labels_are_called() -> None:
    for seed in range(40):
        frontier = by_first_letter(random_frontier(seed, width=16))
        other = replace(frontier, clusters={leaf: 1000 - label for leaf, label in frontier.clusters.items()})
        strategy = weighted(1.5, 1.4, "tokens")
        assert strategy.allocate(frontier, 16, None) == strategy.allocate(other, 16, None)


def test_a_leaf_without_a_label_is_caught() -> None:
    frontier = replace(grown((0, 3, "a"), (0, 3, "b"), scores=(0.5, 0.5)), clusters={1: 0})
    with pytest.raises(KeyError):
        weighted(1.0, 1.4, "nodes").allocate(frontier, 4, None)


# A room instead of a weight


@pytest.mark.parametrize("lambda_diversity", [0.0, 1.4])
def test_with_a_generous_room_it_is_rebase(lambda_diversity: float) -> None:
    for seed in range(80):
        frontier = by_first_letter(random_frontier(seed, width=16))
        plain = REBASE.allocate(frontier, 16, None)
        step = ets.expected_tokens(frontier.tree, 20)
        needed = frontier.tree.distinct_tokens(plain) + 16 * step
        assert roomy(lambda_diversity, 20).allocate(frontier, 16, needed) == plain


@pytest.mark.parametrize("lambda_diversity", [0.0, 1.4])
def test_kept_paths_and_next_steps_never_exceed_the_room(lambda_diversity: float) -> None:
    for seed in range(80):
        frontier = by_first_letter(random_frontier(seed, width=16))
        tree, step = frontier.tree, ets.expected_tokens(frontier.tree, 20)
        shortest = min(tree.distinct_tokens([leaf]) for leaf in frontier.leaves)
        all_tokens = tree.distinct_tokens(frontier.leaves) + 16 * step
        for part in (0.05, 0.2, 0.4, 0.6, 0.8, 0.99):
            room = int(part * all_tokens)
            children = roomy(lambda_diversity, 20).allocate(frontier, 16, room)
            assert set(children) <= set(frontier.leaves)
            assert sum(children.values()) <= 16
            if shortest + step <= room:
                assert children
                assert tree.distinct_tokens(children) + step * sum(children.values()) <= room
            else:
                # Not a whole step, but one token at least, or the end of the tree.
                assert bool(children) == (shortest < room)
                assert tree.distinct_tokens(children) < room or not children


def test_a_step_is_expected_to_be_longer_than_the_longest_that_did_not_run_away() -> None:
    tree = Tree(PROMPT)
    assert ets.expected_tokens(tree, 32) == 32
    for length in (100, 3, 4, 5, 6, 7, 8, 9, 10, 11):
        tree.add(0, tuple(range(length)), "", (), finished=False)
    assert ets.expected_tokens(tree, 32) == 14  # 1.25 x 11; 100 is more than four times the median, 8
    tree.add(0, tuple(range(32)), "", (), finished=False)
    assert ets.expected_tokens(tree, 32) == 40
    empty = Tree(PROMPT)
    empty.add(0, (), "", (), finished=False)
    assert ets.expected_tokens(empty, 32) == 1


def test_a_room_holds_the_most_valuable_set_that_fits() -> None:
    # Width 8 gives leaves 4, 5, 6 children 5, 2, 1. Prompt 10, nodes 1 and 2 hold 20 each, node 3 holds 60.
    # One step of 10 each: 4 alone takes 10 + 60 + 5 + 10 = 85; 5 and 6 share nothing with it.
    frontier = grown(
        (0, 20, ""), (0, 20, ""), (0, 60, ""), (3, 5, "a"), (1, 5, "b"), (2, 5, "c"), scores=(0.7, 0.5, 0.45)
    )
    children = rebase.share(frontier.ranked(), 8, 0.2)
    assert children == {4: 5, 5: 2, 6: 1}

    def kept(frontier: Frontier, lambda_diversity: float, room: int) -> tuple[int, ...] | None:
        found = ets.affordable(frontier, children, lambda_diversity, 10, room)
        return None if found is None else found.leaves

    assert [kept(frontier, 0.0, room) for room in (44, 80, 85, 120, 155)] == [None, (5, 6), (4,), (4, 5), (4, 5, 6)]
    # A cluster is worth 1.5 x 8 / 2 = 6 children where 4 and 5 say the same: 6 and one of them beat both of them.
    alike = replace(frontier, clusters={4: 0, 5: 0, 6: 1})
    assert kept(alike, 1.5, 80) == (5, 6)
    assert kept(alike, 1.5, 120) == (4, 6)


def test_leaves_left_without_children_make_room_for_more_children() -> None:
    # Steps of 1, the next ones expected to have 2: the prompt, three leaves and a step each take 10 + 3 x (1 + 2) = 19.
    # REBASE of 3 gives the best leaf all three, and the two tokens of the others make room for a fourth child.
    frontier = grown((0, 1, "a"), (0, 1, "b"), (0, 1, "c"), scores=(0.9, 0.6, 0.3))
    assert roomy(0.0, 10).allocate(frontier, 8, 19) == {1: 4}
    assert roomy(0.0, 10).allocate(frontier, 8, 13) == {1: 1}


def test_a_room_for_less_than_a_step_goes_to_the_best_leaf_that_leaves_any() -> None:
    frontier = grown((0, 8, "a"), (0, 5, "b"), scores=(0.9, 0.1))
    strategy = roomy(0.0, 20)
    assert strategy.allocate(frontier, 4, 19) == {1: 1}  # path of 18, one token left
    assert strategy.allocate(frontier, 4, 18) == {2: 1}  # path of 15
    assert strategy.allocate(frontier, 4, 15) == {}


@pytest.mark.parametrize(("strategy", "room"), [(weighted(1.0, 1.4, "tokens"), None), (roomy(1.4, 20), 300)])
def test_the_same_frontier_gets_the_same_children(strategy: Ets, room: int | None) -> None:
    for seed in range(20):
        frontier = by_first_letter(random_frontier(seed, width=12))
        assert strategy.allocate(frontier, 12, room) == strategy.allocate(frontier, 12, room)


def test_a_room_counts_in_place_of_the_weight_of_memory() -> None:
    # As above, memory that costs prunes leaf 4; a room that holds both leaves keeps both, whatever memory costs.
    frontier = grown((0, 5, ""), (0, 5, ""), (1, 5, "a"), (2, 5, "b"), scores=(0.6, 0.4))
    strategy = weighted(1.0, 0.0, "nodes")
    assert strategy.allocate(frontier, 4, None) == {3: 4}
    assert strategy.allocate(frontier, 4, 30 + 4 * 7) == {3: 3, 4: 1}  # Steps of 5, so 7 for the next.


def test_diversity_is_what_was_given_or_published_for_the_nearest_width() -> None:
    def diversity(width: int, given: float | None = None) -> float:
        return Ets(EtsSettings(lambda_diversity=given), width=width).diversity

    assert [diversity(width) for width in (1, 16, 31, 33, 64, 127, 129, 256, 4096)] == [
        1.5, 1.5, 1.5, 1.4, 1.4, 1.4, 1.45, 1.45, 1.45,
    ]  # fmt: skip
    assert diversity(16, 0.0) == 0
    assert diversity(16, 0.7) == 0.7


def test_clusters_are_used_where_diversity_has_a_weight() -> None:
    assert Ets().uses == {"scores", "room", "clusters"}
    assert Ets(EtsSettings(lambda_diversity=0.0)).uses == {"scores", "room"}
    assert REBASE.uses == {"scores"}
