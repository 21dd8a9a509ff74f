"""The most valuable set of leaves whose paths fit into a room: a knapsack on a tree.

A price for every token of the paths turns the limit into a cost. At one price, found by the solver and not by the
user, the best set is two at once, one that fits and one that does not; they bound what any set can be worth. Where
the best set known is worth less than that, one leaf is decided both ways. Worths that are multiples of a common unit
round the bound down: with whole children as values most trees need no decision at all. Such trees of width 64 took
2 to 200 ms, all proven; of width 256 some ended unproven at a quarter of their memory, with a gap of 1%.

Ties go by the order of the search: fixed, older leaves first, but not compared set by set as `solver` does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd

from palmette.search.ets_solver.forest import Effort, ExhaustedError, Forest
from palmette.search.ets_solver.solver import Candidates, Number, Selection, Shape, cheapest_or_highs, plant, whole

STEPS = 800_000  # about a third of a second

Leaves = frozenset[int]
"""Leaves by their rank, which is their place in `Shape.order`."""


def select_within(candidates: Candidates, room: Number) -> Selection | None:
    """Return the set of leaves worth most whose costs, each node counted once, sum to `room` at most.

    Costs limit here and are not subtracted: a set is worth the values of its leaves, none of them negative, and the
    bonus for each of its clusters. None where not even one path fits. Past `STEPS` of effort the best set known is
    returned, and its `gap` is not zero.
    """
    scale, (values, extra) = whole(candidates.values, {0: candidates.bonus})
    _, (costs, limit) = whole(candidates.costs, {0: room})
    shape = plant(candidates, costs)
    if min(*values.values(), extra[0]) < 0:
        raise ValueError("a value or the bonus is negative")
    knapsack = Knapsack(shape, [values[leaf] for leaf in shape.order], extra[0], limit[0] - shape.trunk)
    fitting = [rank for rank in range(len(shape.order)) if knapsack.measured([rank])[1] <= knapsack.room]
    if not fitting:
        return None
    kept, worth, bound = _best(knapsack, Leaves(fitting[:1]))
    leaves = tuple(sorted(shape.order[rank] for rank in kept))
    return Selection(leaves, float(Fraction(worth, scale)), float(Fraction(bound - worth, scale)))


def _best(knapsack: "Knapsack", kept: Leaves) -> tuple[Leaves, int, int]:
    """Return the best set, its worth and a bound that no set exceeds, given a first set that fits."""
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
    """Return a set that fits, a bound on all that do, and a set too heavy, both best at the price of the bound.

    Where the best set of all fits it is both, and its worth the bound. Where effort runs out they are the last known.
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
    """What is to be packed: leaves by their rank with their `values`; `room` is what the trunk leaves."""

    shape: Shape
    values: list[int]
    bonus: int
    room: int

    @cached_property
    def unit(self) -> int:
        """The largest number of which every worth is a multiple."""
        return gcd(*self.values, self.bonus) or 1

    @cached_property
    def paths(self) -> list[list[int]]:
        """The nodes from each leaf up to the trunk."""
        paths = []
        for end in self.shape.ends:
            path = [end]
            while (parent := self.shape.parents[path[-1]]) >= 0:
                path.append(parent)
            paths.append(path)
        return paths

    def covered(self, rank: int) -> int:
        """Return the mask of the leaf's cluster."""
        return self.shape.covers[self.paths[rank][0]]

    def measured(self, kept: Iterable[int]) -> tuple[int, int]:
        """Return worth and weight of a set."""
        worth = clusters = 0
        nodes: set[int] = set()
        for rank in kept:
            worth += self.values[rank]
            clusters |= self.covered(rank)
            nodes.update(self.paths[rank])
        return worth + self.bonus * clusters.bit_count(), sum(self.shape.costs[node] for node in nodes)

    def best_at(self, price: int, unit: int, inside: Leaves, outside: Leaves, effort: Effort) -> Leaves:
        """Return the set with `inside`, without `outside`, of the highest unit * worth - price * weight."""
        shape, count = self.shape, len(self.values)
        prices = [price * cost << count for cost in shape.costs]
        for rank, end in enumerate(shape.ends):
            prices[end] -= (unit * self.values[rank] << count) + (1 << (count - 1 - rank))
        for rank in inside:
            for node in self.paths[rank]:
                prices[node] = 0
        shut = {shape.ends[rank] for rank in outside}
        forest = Forest(shape.parents, prices, shape.covers).only([i for i in range(len(prices)) if i not in shut])
        found = -cheapest_or_highs(forest, unit * self.bonus << count, effort)
        return inside | {rank for rank in range(count) if found >> (count - 1 - rank) & 1}

    def filled(self, kept: Leaves, outside: Leaves, effort: Effort) -> Leaves:
        """Return `kept` with what else fits, leaf by leaf, the most worth for its weight first.

        Steps are taken from `effort`, but running out raises nothing.
        """
        full = set(kept)
        nodes = {node for rank in kept for node in self.paths[rank]}
        left = self.room - sum(self.shape.costs[node] for node in nodes)
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
                    weight += self.shape.costs[node]
                if weight <= left and worth * best[1] > best[0] * weight and rank not in full:
                    best = (worth, weight, rank)
            if best[2] < 0:
                return Leaves(full)
            full.add(best[2])
            left -= best[1]
            clusters |= self.covered(best[2])
            nodes.update(self.paths[best[2]])
