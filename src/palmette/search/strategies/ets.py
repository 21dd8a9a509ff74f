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
from typing import Literal

from pydantic import Field

from palmette.search.ets_solver.knapsack import select_within
from palmette.search.ets_solver.solver import Candidates, Selection, select
from palmette.search.strategies.rebase import RebaseSettings, share
from palmette.strategy import Children, Frontier, Strategy, Use
from palmette.tree import Tree

MOST_STEPS = 0.9
"""In a limited room a step is expected to be as long as this part of the tree's steps are at the most."""

PUBLISHED_DIVERSITY = {16: 1.5, 64: 1.4, 256: 1.45}
"""The diversity weights that ETS publishes, by width."""

CostModel = Literal["nodes", "tokens"]


class EtsSettings(RebaseSettings):
    """The weights of ETS. `lambda_diversity` null is what ETS publishes for the nearest width; 0 loads no embedder."""

    lambda_kv: float = Field(1.25, ge=0, le=1000, description="weight of memory; ETS publishes 1.0")
    lambda_diversity: float | None = Field(
        None, ge=0, le=1000, description="weight of clusters covered; null: as published for the nearest width; 0: none"
    )
    kv_cost: CostModel = Field("nodes", description="what a node costs: all alike, or by its tokens")


class Ets(Strategy):
    """REBASE on those leaves that are worth the memory of their paths.

    Without a KV budget memory has a weight (`weighted`); with one it is a limit (`within_room`).
    """

    Settings = EtsSettings
    settings: EtsSettings

    @property
    def uses(self) -> frozenset[Use]:
        """Scores and the room; clusters where diversity has a weight."""
        return frozenset({"scores", "room", "clusters"} if self.diversity > 0 else {"scores", "room"})

    @property
    def diversity(self) -> float:
        """Return the weight of diversity: the one given, or the one published for the nearest width."""
        if self.settings.lambda_diversity is not None:
            return self.settings.lambda_diversity
        return PUBLISHED_DIVERSITY[min(PUBLISHED_DIVERSITY, key=lambda width: abs(math.log(self.width / width)))]

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Keep what is worth its memory, or what is worth most within the room; REBASE shares the width among it."""
        if room is None:
            return self._weighted(frontier, width)
        return self._within_room(frontier, width, room)

    def _weighted(self, frontier: Frontier, width: int) -> Children:
        """Return the children as published: memory costs `lambda_kv`, covered clusters earn the weight of diversity.

        With both weights 0 it equals REBASE.
        """
        temperature = self.settings.rebase_temperature
        children = share(frontier.ranked(), width, temperature)
        kept = worthwhile(frontier, children, self.settings.lambda_kv, self.diversity, self.settings.kv_cost)
        return share(_among(frontier, kept.leaves), width, temperature)

    def _within_room(self, frontier: Frontier, width: int, room: int) -> Children:
        """Return the children of the most valuable set whose paths and next steps fit the room.

        A next step is expected to take what most steps of the tree took, the first ones `first_step_tokens`. Where the
        room holds what REBASE would keep, this is REBASE. Where it does not, every kept leaf needs room for one step,
        and as many children are granted as the room holds, at most the width. A cluster is worth a whole number of
        children, the nearest to the weight of diversity and at least 1: whole worths are what makes the optimum quick
        to prove (`knapsack`). Where not even one step as expected fits, the best leaf that leaves any room gets one
        child.
        """
        tree, temperature = frontier.tree, self.settings.rebase_temperature
        step_tokens = expected_tokens(tree, self.first_step_tokens)

        def fits(granted: Children) -> bool:
            return tree.unique_tokens(granted) + sum(granted.values()) * step_tokens <= room

        children = share(frontier.ranked(), width, temperature)
        if fits(children):
            return children
        kept = affordable(frontier, children, self.diversity, step_tokens, room)
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


plugin = Ets


def expected_tokens(tree: Tree, first_tokens: int) -> int:
    """Return how long a next step is expected to be; `first_tokens` where the tree has no step yet."""
    lengths = sorted(len(node.tokens) for node in tree.nodes[1:])
    return max(1, lengths[math.ceil(MOST_STEPS * len(lengths)) - 1]) if lengths else first_tokens


def worthwhile(
    frontier: Frontier, children: Children, lambda_kv: float, lambda_diversity: float, cost: CostModel
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
    frontier: Frontier, children: Children, lambda_diversity: float, step_tokens: int, room: int
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
