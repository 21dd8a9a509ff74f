"""ETS: REBASE on those leaves that are worth the memory of their paths.

As published (Hooper et al., 2025), except that
- REBASE hands out exactly the width, here as in `rebase`; the published rounding gives one child more now and then;
- the best set is proven in whole numbers, with ties to the older node, where the published code takes what CBC finds;
- `tokens` weighs a node by its share of the KV tokens; the published code counts each node alike, which is `nodes`;
- `within_room` takes a number of tokens instead of a weight, which is not in the paper.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Literal

from palmette.errors import BudgetError
from palmette.search.fit import select_within
from palmette.search.rebase import share
from palmette.search.solver import Candidates, Selection, select
from palmette.search.strategy import Allocation, Frontier
from palmette.tree import Tree

CostModel = Literal["nodes", "tokens"]

Clusterer = Callable[[list[str]], list[int]]
"""Labels for texts, alike for texts that say the same."""


def weighted(
    temperature: float, lambda_kv: float, lambda_diversity: float, cost: CostModel, cluster: Clusterer
) -> Callable[[Frontier, int, int | None], Allocation]:
    """Return the strategy as published: memory costs `lambda_kv`, covered clusters earn `lambda_diversity`.

    With both weights 0 it equals REBASE. `cluster` is called once, with the last steps of all leaves; not at all
    where they are all alike, or with `lambda_diversity` 0.
    """

    def allocate(frontier: Frontier, width: int, room: int | None) -> Allocation:
        children = share(frontier.ranked(), width, temperature)
        kept = worthwhile(frontier, children, lambda_kv, lambda_diversity, cost, cluster)
        return share(_among(frontier, kept.leaves), width, temperature)

    return allocate


def within_room(
    temperature: float, lambda_diversity: float, step_tokens: int, cluster: Clusterer
) -> Callable[[Frontier, int, int | None], Allocation]:
    """Return the strategy that keeps the most valuable set whose paths and next steps fit the room.

    Here `room` is what the tree may hold in all: prompt, kept paths and the steps to come, each of which may take
    `step_tokens`. Where the room holds what REBASE would keep, or is None, this is REBASE. Where it does not, every
    kept leaf needs room for one step, and as many children are granted as the room holds, at most the width. A
    cluster is worth a whole number of children, the nearest to `lambda_diversity` and at least 1: whole worths are
    what makes the optimum quick to prove (`fit`). Raises BudgetError where not even one path and one step fit.
    """

    def allocate(frontier: Frontier, width: int, room: int | None) -> Allocation:
        def fits(granted: Allocation) -> bool:
            return room is None or frontier.tree.unique_tokens(granted) + sum(granted.values()) * step_tokens <= room

        children = share(frontier.ranked(), width, temperature)
        if room is None or fits(children):
            return children
        kept = affordable(frontier, children, lambda_diversity, step_tokens, room, cluster)
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


def worthwhile(
    frontier: Frontier,
    children: Allocation,
    lambda_kv: float,
    lambda_diversity: float,
    cost: CostModel,
    cluster: Clusterer,
) -> Selection:
    """Return the set of leaves that maximizes REBASE shares - lambda_kv x cost + lambda_diversity x clusters covered.

    A leaf's share is its part of `children`; cost is the part of all nodes or tokens on the candidates' paths, the
    prompt among them; clusters count as the part of all clusters present.
    """
    parents = _parents(frontier.tree, frontier.leaves)
    sizes = {node: _tokens(frontier.tree, node) if cost == "tokens" else 1 for node in parents}
    clusters, diversity = _clusters(frontier, lambda_diversity, cluster)
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
    frontier: Frontier,
    children: Allocation,
    lambda_diversity: float,
    step_tokens: int,
    room: int,
    cluster: Clusterer,
) -> Selection:
    """Return the set of leaves with the most REBASE children, clusters included, whose paths and one step each fit."""
    tree = frontier.tree
    parents = _parents(tree, frontier.leaves)
    leaves = set(frontier.leaves)
    weights = {node: _tokens(tree, node) + (step_tokens if node in leaves else 0) for node in parents}
    clusters, diversity = _clusters(frontier, lambda_diversity, cluster)
    bonus = max(1, round(diversity * sum(children.values()))) if clusters else 0
    values = {leaf: children.get(leaf, 0) for leaf in frontier.leaves}
    kept = select_within(Candidates(parents, values, weights, clusters, bonus), room)
    if kept is None:
        path = min(tree.unique_tokens([leaf]) for leaf in frontier.leaves)
        raise BudgetError(
            f"one branch needs {path + step_tokens} KV tokens, {path} for its path and {step_tokens} for its next "
            f"step, but there is room for {room}. Fits: a kv_budget for {path + step_tokens} tokens a question"
            + (f", or step_tokens {room - path}" if room > path else "")
        )
    return kept


def _clusters(frontier: Frontier, lambda_diversity: float, cluster: Clusterer) -> tuple[dict[int, int], Fraction]:
    """Return the leaves' labels and what covering one cluster earns; nothing where diversity has no say."""
    texts = [frontier.tree.nodes[leaf].text for leaf in frontier.leaves]
    if not lambda_diversity or len(set(texts)) == 1:
        return {}, Fraction(0)
    labels = cluster(texts)
    return dict(zip(frontier.leaves, labels, strict=True)), Fraction(str(lambda_diversity)) / len(set(labels))


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
