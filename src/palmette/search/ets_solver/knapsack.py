"""Selects the most valuable set of leaves whose paths fit into a limit: a knapsack on a tree, by branch and bound.

The limit is relaxed (Lagrangian relaxation): every token of the paths gets a price, and at a given price the best set
is found by `solver`. The price is adjusted until two sets are best at once, one that fits and one that does not; that
price gives an upper bound on the worth of any set that fits. If the best set known is worth less than the bound, one
leaf is fixed, once as kept and once as left out, and both cases are solved the same way. If all worths are multiples of
a common unit, the bound is rounded down to such a multiple: with numbers of children as values, most trees need no
branching. Such trees of width 64 took 2 to 200 ms, all proven; at width 256 and a quarter of the memory some ended
unproven, with a gap of 1%.

The order of the search is fixed, older leaves first, so results repeat. Ties are not broken set by set as in `solver`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd

from palmette.search.ets_solver.forest import Effort, ExhaustedError, Forest
from palmette.search.ets_solver.solver import (
    Candidates,
    CompressedTree,
    Number,
    Selection,
    cheapest_or_highs,
    compress,
    to_integers,
)

STEPS = 800_000  # about a third of a second

Leaves = frozenset[int]
"""Leaves by rank: the position in `CompressedTree.order`."""


def select_within(candidates: Candidates, room: Number) -> Selection | None:
    """Return the set of leaves worth most whose costs, each node counted once, sum to at most `room`.

    Unlike in `select`, costs are not subtracted: the worth of a set is the sum of its leaves' values, plus the bonus
    for each cluster with a leaf in the set. Returns None if not even one path fits. After `STEPS` of effort the best
    set found so far is returned, and `gap` is how far it is below the bound. Raises ValueError as `select` does, and
    for a negative value.
    """
    scale, (values, extra) = to_integers(candidates.values, {0: candidates.bonus})
    _, (costs, limit) = to_integers(candidates.costs, {0: room})
    tree = compress(candidates, costs)
    if min(*values.values(), extra[0]) < 0:
        raise ValueError("a value or the bonus is negative")
    knapsack = Knapsack(tree, [values[leaf] for leaf in tree.order], extra[0], limit[0] - tree.trunk)
    fitting = [rank for rank in range(len(tree.order)) if knapsack.measured([rank])[1] <= knapsack.room]
    if not fitting:
        return None
    kept, worth, bound = _best(knapsack, Leaves(fitting[:1]))
    leaves = tuple(sorted(tree.order[rank] for rank in kept))
    return Selection(leaves, float(Fraction(worth, scale)), float(Fraction(bound - worth, scale)))


def _best(knapsack: "Knapsack", kept: Leaves) -> tuple[Leaves, int, int]:
    """Return the best set, its worth and an upper bound on the worth of any set. `kept` is a first set that fits."""
    worth, _ = knapsack.measured(kept)
    top = None
    effort = Effort(STEPS)
    waiting = [(Leaves(), Leaves())]
    while waiting:
        inside, outside = waiting.pop()
        if knapsack.measured(inside)[1] > knapsack.room:
            continue
        fits, bound, heavy = _relaxed(knapsack, inside, outside, effort)
        top = bound if top is None else top
        full = knapsack.filled(fits, outside, effort)
        if (found := knapsack.measured(full)[0]) > worth:
            kept, worth = full, found
        if effort.left < 0:
            return kept, worth, max(top, worth)
        if bound > worth:
            leaf = max(heavy - fits, key=lambda rank: (knapsack.values[rank], -rank))
            waiting += [(inside, outside | {leaf}), (inside | {leaf}, outside)]
    return kept, worth, worth


def _relaxed(knapsack: "Knapsack", inside: Leaves, outside: Leaves, effort: Effort) -> tuple[Leaves, int, Leaves]:
    """Return a set that fits, an upper bound on the worth of all sets that fit, and a set that is too heavy.

    All sets hold the leaves `inside` and none of `outside`. Both returned sets are best at the price per token that
    gives the bound. If the set of all allowed leaves fits, it is returned as both, with its worth as the bound. If
    `effort` runs out, the sets and the bound found so far are returned.
    """
    fits = knapsack.filled(inside, outside, effort)
    heavy = Leaves(range(len(knapsack.values))) - outside
    (low, light), (high, load) = knapsack.measured(fits), knapsack.measured(heavy)
    if load <= knapsack.room:
        return heavy, high, heavy
    bound = high
    while True:
        price, unit = high - low, load - light
        try:
            found = knapsack.best_at(price, unit, inside, outside, effort)
        except ExhaustedError:
            return fits, bound, heavy
        worth, weight = knapsack.measured(found)
        reach = unit * worth - price * weight
        bound = min(bound, (reach + price * knapsack.room) // (unit * knapsack.unit) * knapsack.unit)
        if reach <= unit * low - price * light:
            return fits, bound, heavy
        if weight <= knapsack.room:
            fits, low, light = found, worth, weight
        else:
            heavy, high, load = found, worth, weight


@dataclass(frozen=True)
class Knapsack:
    """One problem in integers: `values` by rank of the leaf; `room` is the limit minus the cost of the trunk."""

    tree: CompressedTree
    values: list[int]
    bonus: int
    room: int

    @cached_property
    def unit(self) -> int:
        """The largest integer of which every worth is a multiple."""
        return gcd(*self.values, self.bonus) or 1

    @cached_property
    def paths(self) -> list[list[int]]:
        """For each leaf, the nodes from the leaf up to the trunk."""
        paths = []
        for end in self.tree.ends:
            path = [end]
            while (parent := self.tree.parents[path[-1]]) >= 0:
                path.append(parent)
            paths.append(path)
        return paths

    def covered(self, rank: int) -> int:
        """Return the bit mask of the leaf's cluster, 0 without one."""
        return self.tree.covers[self.paths[rank][0]]

    def measured(self, kept: Iterable[int]) -> tuple[int, int]:
        """Return the worth and the weight of a set: its nodes' costs, without the trunk."""
        worth = clusters = 0
        nodes: set[int] = set()
        for rank in kept:
            worth += self.values[rank]
            clusters |= self.covered(rank)
            nodes.update(self.paths[rank])
        return worth + self.bonus * clusters.bit_count(), sum(self.tree.costs[node] for node in nodes)

    def best_at(self, price: int, unit: int, inside: Leaves, outside: Leaves, effort: Effort) -> Leaves:
        """Return the set with all of `inside` and none of `outside` that maximizes unit * worth - price * weight.

        Raises ExhaustedError if `effort` runs out.
        """
        tree, count = self.tree, len(self.values)
        prices = [price * cost << count for cost in tree.costs]
        for rank, end in enumerate(tree.ends):
            prices[end] -= (unit * self.values[rank] << count) + (1 << (count - 1 - rank))
        for rank in inside:
            for node in self.paths[rank]:
                prices[node] = 0
        closed = {tree.ends[rank] for rank in outside}
        allowed = [node for node in range(len(prices)) if node not in closed]
        forest = Forest(tree.parents, prices, tree.covers).restricted_to(allowed)
        found = -cheapest_or_highs(forest, unit * self.bonus << count, effort)
        return inside | {rank for rank in range(count) if found >> (count - 1 - rank) & 1}

    def filled(self, kept: Leaves, outside: Leaves, effort: Effort) -> Leaves:
        """Return `kept` with more leaves added as long as one fits, each time the one with the most worth per weight.

        Never adds a leaf of `outside`. Subtracts from `effort`, but raises nothing if it runs out.
        """
        full = set(kept)
        nodes = {node for rank in kept for node in self.paths[rank]}
        left = self.room - sum(self.tree.costs[node] for node in nodes)
        clusters = 0
        for rank in kept:
            clusters |= self.covered(rank)
        open_ranks = [rank for rank in range(len(self.values)) if rank not in full and rank not in outside]
        while True:
            effort.left -= 4 * len(open_ranks)
            best = (0, 1, -1)
            for rank in open_ranks:
                worth = self.values[rank] + (self.bonus if self.covered(rank) & ~clusters else 0)
                weight = 0
                for node in self.paths[rank]:
                    if node in nodes:
                        break
                    weight += self.tree.costs[node]
                if weight <= left and worth * best[1] > best[0] * weight and rank not in full:
                    best = (worth, weight, rank)
            if best[2] < 0:
                return Leaves(full)
            full.add(best[2])
            left -= best[1]
            clusters |= self.covered(best[2])
            nodes.update(self.paths[best[2]])
