"""ETS: REBASE on those leaves that are worth the memory of their paths.

As published (Hooper et al., 2025), except that
- REBASE hands out exactly the width, here as in `rebase`; the published rounding gives one child more now and then;
- the best set is proven in whole numbers, with ties to the older node, where the published code takes what CBC finds;
- `tokens` weighs a node by its share of the KV tokens; the published code counts each node alike, which is `nodes`;
- `within_room` takes a number of tokens instead of a weight, which is not in the paper.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

from palmette.config import CostModel
from palmette.search.ets_solver.knapsack import select_within
from palmette.search.ets_solver.solver import Candidates, Selection, select
from palmette.search.strategies.rebase import share
from palmette.search.strategy import Allocation, Frontier, Strategy
from palmette.tree import Tree

MOST_STEPS = 0.9
"""In a limited room a step is expected to be as long as this part of the tree's steps are at the most."""


def weighted(temperature: float, lambda_kv: float, lambda_diversity: float, cost: CostModel) -> Strategy:
    """Return the strategy as published: memory costs `lambda_kv`, covered clusters earn `lambda_diversity`.

    With both weights 0 it equals REBASE.
    """

    def allocate(frontier: Frontier, width: int, room: int | None) -> Allocation:
        children = share(frontier.ranked(), width, temperature)
        kept = worthwhile(frontier, children, lambda_kv, lambda_diversity, cost)
        return share(_among(frontier, kept.leaves), width, temperature)

    return allocate


def within_room(temperature: float, lambda_diversity: float, first_tokens: int) -> Strategy:
    """Return the strategy that keeps the most valuable set whose paths and next steps fit the room.

    A next step is expected to take what most steps of the tree took, the first ones `first_tokens`. Where the room
    holds what REBASE would keep, or is None, this is REBASE. Where it does not, every kept leaf needs room for one
    step, and as many children are granted as the room holds, at most the width. A cluster is worth a whole number of
    children, the nearest to `lambda_diversity` and at least 1: whole worths are what makes the optimum quick to prove
    (`fit`). Where not even one step as expected fits, the best leaf that leaves any room gets one child.
    """

    def allocate(frontier: Frontier, width: int, room: int | None) -> Allocation:
        tree = frontier.tree
        step_tokens = expected_tokens(tree, first_tokens)

        def fits(granted: Allocation) -> bool:
            return room is None or tree.unique_tokens(granted) + sum(granted.values()) * step_tokens <= room

        children = share(frontier.ranked(), width, temperature)
        if room is None or fits(children):
            return children
        kept = affordable(frontier, children, lambda_diversity, step_tokens, room)
        if kept is None:
            return next(({leaf: 1} for leaf, _ in frontier.ranked() if tree.unique_tokens([leaf]) < room), {})
        survivors = _among(frontier, kept.leaves)
        # One child for each is what was paid for; REBASE gives some none, and their paths make room for more.
        least, most = min(len(survivors), width), width
        while least < most:
            middle = (least + most + 1) // 2
            if fits(share(survivors, middle, temperature)):
                least = middle
            else:
                most = middle - 1
        return share(survivors, least, temperature)

    return allocate


def expected_tokens(tree: Tree, first_tokens: int) -> int:
    """Return how long a next step is expected to be; `first_tokens` where the tree has no step yet."""
    lengths = sorted(len(node.tokens) for node in tree.nodes[1:])
    return max(1, lengths[math.ceil(MOST_STEPS * len(lengths)) - 1]) if lengths else first_tokens


def worthwhile(
    frontier: Frontier, children: Allocation, lambda_kv: float, lambda_diversity: float, cost: CostModel
) -> Selection:
    """Return the set of leaves that maximizes REBASE shares - lambda_kv x cost + lambda_diversity x clusters covered.

    A leaf's share is its part of `children`; cost is the part of all nodes or tokens on the candidates' paths, the
    prompt among them; clusters count as the part of all clusters present.
    """
    parents = _parents(frontier.tree, frontier.leaves)
    sizes = {node: _tokens(frontier.tree, node) if cost == "tokens" else 1 for node in parents}
    clusters, diversity = _clusters(frontier, lambda_diversity)
    # Weights as they are written, so that 1.4 is 7/5, and fractions throughout: sets tie when they tie on paper.
    each = Fraction(str(lambda_kv)) / max(1, sum(sizes.values()))
    prices = {size: each * size for size in set(sizes.values())}
    total = sum(children.values())
    shares = {count: Fraction(count, total) for count in {0, *children.values()}}
    return select(
        Candidates(
            parents,
            {leaf: shares[children.get(leaf, 0)] for leaf in frontier.leaves},
            {node: prices[size] for node, size in sizes.items()},
            clusters,
            diversity,
        )
    )


def affordable(
    frontier: Frontier, children: Allocation, lambda_diversity: float, step_tokens: int, room: int
) -> Selection | None:
    """Return the set of leaves with the most REBASE children, clusters included, whose paths and one step each fit.

    None where not even one path with its step does.
    """
    tree = frontier.tree
    parents = _parents(tree, frontier.leaves)
    leaves = set(frontier.leaves)
    weights = {node: _tokens(tree, node) + (step_tokens if node in leaves else 0) for node in parents}
    clusters, diversity = _clusters(frontier, lambda_diversity)
    bonus = max(1, round(diversity * sum(children.values()))) if clusters else 0
    values = {leaf: children.get(leaf, 0) for leaf in frontier.leaves}
    return select_within(Candidates(parents, values, weights, clusters, bonus), room)


def _clusters(frontier: Frontier, lambda_diversity: float) -> tuple[dict[int, int], Fraction]:
    """Return the leaves' labels and what covering one cluster earns; nothing where diversity has no say."""
    if not lambda_diversity or not frontier.clusters:
        return {}, Fraction(0)
    labels = {leaf: frontier.clusters[leaf] for leaf in frontier.leaves}
    return labels, Fraction(str(lambda_diversity)) / len(set(labels.values()))


def _parents(tree: Tree, leaves: Iterable[int]) -> dict[int, int | None]:
    """Return the parent of every node on the leaves' paths."""
    parents: dict[int, int | None] = {}
    for leaf in leaves:
        node: int | None = leaf
        while node is not None and node not in parents:
            parents[node] = tree.nodes[node].parent
            node = parents[node]
    return parents


def _tokens(tree: Tree, node: int) -> int:
    return len(tree.nodes[node].tokens)


def _among(frontier: Frontier, kept: Iterable[int]) -> list[tuple[int, float]]:
    """Return the ranking of the kept leaves alone."""
    stay = set(kept)
    return [pair for pair in frontier.ranked() if pair[0] in stay]
