"""ETS: prunes the leaves that are not worth the KV cache of their paths, then applies REBASE to the rest.

As published (Hooper et al., 2025), except that
- the children always sum to the width, as in `rebase`; the published rounding sometimes gives one child too many;
- the best set of leaves is proven in integer arithmetic, ties go to the older node; the published code takes what CBC
  finds;
- leaves with the same tokens on their paths, copies, are one leaf with their shares added, and so are the nodes on such
  paths: a KV cache stores them once. The children are shared among all copies. The published code pays for each copy;
- `kv_cost` can also be `tokens`, which charges for every distinct token; the published code charges every node the
  same, which is `nodes`;
- with a KV budget, memory is a limit in tokens instead of a weight (`_within_room`), which is not in the paper.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from pydantic import Field

from palmette.search.ets_solver.knapsack import select_within
from palmette.search.ets_solver.solver import Candidates, Selection, select
from palmette.search.strategies.rebase import RebaseSettings, share
from palmette.strategy import Children, Frontier, Strategy, Use
from palmette.tree import Tree

LONGER, RUNAWAY = Fraction(5, 4), 4
"""With a KV budget, the next step is expected to be so many times as long as the longest step of the tree; of those
that are no more than so many times as long as the median, because a step may also never end.

A step that is longer than its place is cut, and a judge that sees half a step takes it for a wrong one: with a place
for nine of ten steps the long ones were always cut, and ETS lost half of its right answers.
"""

PUBLISHED_DIVERSITY = {16: 1.5, 64: 1.4, 256: 1.45}
"""The values of `lambda_diversity` that ETS publishes, by width."""

CostModel = Literal["nodes", "tokens"]


class EtsSettings(RebaseSettings):
    """Settings of ETS, with the one of REBASE.

    `lambda_diversity` None uses the value that ETS publishes for the nearest width. With 0 no embedder is loaded.
    """

    lambda_kv: float = Field(1.25, ge=0, le=1000, description="weight of the KV cost; ETS publishes 1.0")
    lambda_diversity: float | None = Field(
        None, ge=0, le=1000, description="weight of clusters covered; null: as published for the nearest width; 0: none"
    )
    kv_cost: CostModel = Field("nodes", description="what a node costs: nodes, all the same; tokens, by its KV tokens")


class Ets(Strategy):
    """Prunes the leaves that are not worth the KV cache of their paths, then applies REBASE to the rest.

    Without a KV budget memory is a cost with a weight (`_weighted`), with a KV budget it is a limit (`_within_room`).
    """

    Settings = EtsSettings
    settings: EtsSettings

    @property
    def uses(self) -> frozenset[Use]:
        """Scores and the room; clusters too unless the weight of diversity is 0."""
        return frozenset({"scores", "room", "clusters"} if self.diversity > 0 else {"scores", "room"})

    @property
    def diversity(self) -> float:
        """The weight of diversity: the setting, or the value published for the nearest width."""
        if self.settings.lambda_diversity is not None:
            return self.settings.lambda_diversity
        return PUBLISHED_DIVERSITY[min(PUBLISHED_DIVERSITY, key=lambda width: abs(math.log(self.width / width)))]

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Select the leaves to keep, by weight or within the room, and share the width among them by REBASE."""
        if room is None:
            return self._weighted(frontier, width)
        return self._within_room(frontier, width, room)

    def _weighted(self, frontier: Frontier, width: int) -> Children:
        """Return the children as published, with `lambda_kv` and the weight of diversity.

        With both weights 0 the result equals REBASE.
        """
        temperature = self.settings.rebase_temperature
        children = share(frontier.ranked(), width, temperature)
        kept = worthwhile(frontier, children, self.settings.lambda_kv, self.diversity, self.settings.kv_cost)
        return share(_among(frontier, kept.leaves), width, temperature)

    def _within_room(self, frontier: Frontier, width: int, room: int) -> Children:
        """Return the children of the most valuable set of leaves whose paths and next steps fit into `room` KV tokens.

        1. If the children that REBASE would give fit, return those.
        2. Else select the leaves with the most value such that their paths and one next step for each fit.
        3. Share as many children among them by REBASE as fit, at most `width`.

        If not even one path with one step of the expected length fits, the best leaf whose path leaves any room gets
        one child; without such a leaf the result is empty, which ends the tree.

        A next step is expected to have `expected_tokens`. The value of a leaf is its number of REBASE children.
        Covering a cluster adds `lambda_diversity` x all children / number of clusters, rounded to an integer and at
        least 1: integer values make the optimum quick to prove (`knapsack`).
        """
        tree, temperature = frontier.tree, self.settings.rebase_temperature
        step_tokens = expected_tokens(tree, self.first_step_tokens)

        def fits(granted: Children) -> bool:
            return tree.distinct_tokens(granted) + sum(granted.values()) * step_tokens <= room

        children = share(frontier.ranked(), width, temperature)
        if fits(children):
            return children
        kept = affordable(frontier, children, self.diversity, step_tokens, room)
        if kept is None:
            return next(({leaf: 1} for leaf, _ in frontier.ranked() if tree.distinct_tokens([leaf]) < room), {})
        kept_leaves = _among(frontier, kept.leaves)
        # Binary search for the number of children. One for each distinct path fits; REBASE gives some leaves none, and
        # the tokens of their paths are free for more.
        least, most = min(len(set(map(tree.place, kept.leaves))), width), width
        while least < most:
            middle = (least + most + 1) // 2
            if fits(share(kept_leaves, middle, temperature)):
                least = middle
            else:
                most = middle - 1
        return share(kept_leaves, least, temperature)


plugin = Ets


def expected_tokens(tree: Tree, first_tokens: int) -> int:
    """Return the expected length of the next step in tokens: a quarter more than the longest step of the tree has.

    `first_tokens` if the tree has no step yet.
    """
    lengths = sorted(len(node.tokens) for node in tree.nodes[1:])
    if not lengths:
        return first_tokens
    most = RUNAWAY * max(1, lengths[len(lengths) // 2])
    return max(1, math.ceil(LONGER * max(length for length in lengths if length <= most)))


def worthwhile(
    frontier: Frontier, children: Children, lambda_kv: float, lambda_diversity: float, cost: CostModel
) -> Selection:
    """Return the set of leaves that maximizes sum of shares - lambda_kv x cost + lambda_diversity x clusters covered.

    All three terms are fractions of a total: a leaf's share is its part of all REBASE `children`; the cost is the part
    of all nodes (or tokens) on the paths of the whole frontier, prompt included, that lies on the paths of the set;
    clusters are the part of the frontier's clusters that have a leaf in the set. Copies are selected together.
    """
    paths = _Paths(frontier)
    sizes = paths.tokens() if cost == "tokens" else paths.steps()
    clusters, diversity = _clusters(frontier, paths.copies, lambda_diversity)
    # Fractions of the weights as written (1.4 is 7/5) instead of floats: two sets tie exactly when they tie on paper.
    each = Fraction(str(lambda_kv)) / max(1, sum(sizes.values()))
    prices = {size: each * size for size in {0, *sizes.values()}}
    total = sum(children.values())
    values = {leaf: Fraction(count, total) for leaf, count in paths.values(children).items()}
    costs = {node: prices[sizes.get(node, 0)] for node in paths.parents}
    return paths.with_copies(select(Candidates(paths.parents, values, costs, clusters, diversity)))


def affordable(
    frontier: Frontier, children: Children, lambda_diversity: float, step_tokens: int, room: int
) -> Selection | None:
    """Return the most valuable set of leaves whose paths fit into `room`, with one step of `step_tokens` for each leaf.

    The value is the number of REBASE `children` plus a bonus for every cluster covered. Copies are selected together,
    with one step for all of them. None if not even one path with one step fits.
    """
    paths = _Paths(frontier)
    clusters, diversity = _clusters(frontier, paths.copies, lambda_diversity)
    bonus = max(1, round(diversity * sum(children.values()))) if clusters else 0
    weights = {**dict.fromkeys(paths.copies, step_tokens), **paths.tokens()}
    found = select_within(Candidates(paths.parents, paths.values(children), weights, clusters, bonus), room)
    return None if found is None else paths.with_copies(found)


class _Paths:
    """The paths of a frontier as the solver sees them: every distinct token prefix once, as a KV cache stores it.

    Leaves whose paths have the same tokens, copies, are one leaf, that of the oldest (`copies` has all of them by it).
    Below the leaves `parents` has the places of `Tree.prefixes`, as negative numbers with the oldest first.
    """

    def __init__(self, frontier: Frontier) -> None:
        self._tree = frontier.tree
        at_place: dict[int, list[int]] = {}
        for leaf in frontier.leaves:
            at_place.setdefault(self._tree.place(leaf), []).append(leaf)
        self.copies = {leaves[0]: leaves for leaves in at_place.values()}
        places = self._tree.prefixes.parents(at_place)
        self._numbers = {place: number - len(places) for number, place in enumerate(places)}
        self.parents: dict[int, int | None] = {
            self._numbers[place]: None if above is None else self._numbers[above] for place, above in places.items()
        }
        self.parents |= {leaves[0]: self._numbers[place] for place, leaves in at_place.items()}

    def tokens(self) -> dict[int, int]:
        """Return the tokens of each place."""
        return {number: self._tree.prefixes.length(place) for place, number in self._numbers.items()}

    def steps(self) -> dict[int, int]:
        """Return 1 for each place at which a step (or the prompt) on the paths ends, 0 for the others."""
        steps: set[int] = set()
        for leaf in self.copies:
            node: int | None = leaf
            while node is not None and node not in steps:
                steps.add(node)
                node = self._tree.nodes[node].parent
        ends = {self._tree.place(step) for step in steps}
        return {number: int(place in ends) for place, number in self._numbers.items()}

    def values(self, children: Children) -> dict[int, int]:
        """Return the children of each leaf, those of its copies added."""
        return {oldest: sum(children.get(leaf, 0) for leaf in leaves) for oldest, leaves in self.copies.items()}

    def with_copies(self, found: Selection) -> Selection:
        """Return the selection with all copies of its leaves."""
        return replace(found, leaves=tuple(sorted(leaf for oldest in found.leaves for leaf in self.copies[oldest])))


def _clusters(frontier: Frontier, leaves: Iterable[int], lambda_diversity: float) -> tuple[dict[int, int], Fraction]:
    """Return each leaf's cluster and the bonus for covering one; no clusters and 0 if diversity has no weight."""
    if not lambda_diversity or not frontier.clusters:
        return {}, Fraction(0)
    labels = {leaf: frontier.clusters[leaf] for leaf in leaves}
    return labels, Fraction(str(lambda_diversity)) / len(set(labels.values()))


def _among(frontier: Frontier, kept: Iterable[int]) -> list[tuple[int, float]]:
    """Return the kept leaves with their scores, best first."""
    chosen = set(kept)
    return [pair for pair in frontier.ranked() if pair[0] in chosen]
