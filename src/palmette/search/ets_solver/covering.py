"""Which branches of a forest to open when several of them earn the same reward: branch and bound in whole numbers.

The problem is a prize-collecting group Steiner tree on a tree, NP-hard in general. What makes it fast on search trees:
`reduce` decides nearly everything by rules that cost one pass each, and a bound by dual ascent closes the rest after a
few bounds: 0 to 2 at the published weights, 1 to 29 at width 256 and twice the weight. Whole numbers of any size, so
that a proof is a proof: nothing here rounds.
"""

from palmette.search.ets_solver.bound import Bound
from palmette.search.ets_solver.forest import Effort, Forest, split, union
from palmette.search.ets_solver.reduce import reduce


def cheapest(forest: Forest, bonus: int, limit: int, effort: Effort) -> int:
    """Return the least sum of opened prices minus `bonus` for every covered cluster; `limit` if it is no less.

    Raises ExhaustedError where `effort` runs out first.
    """
    forest, total = reduce(forest, bonus, effort)
    parts = split(forest)
    floors = [-bonus * union(part.covers).bit_count() for part in parts]
    total += sum(floors)
    for part, floor in zip(parts, floors, strict=True):
        if total >= limit:
            return limit
        total += _branch(part, bonus, limit - total + floor, effort) - floor
    return min(total, limit)


def _branch(forest: Forest, bonus: int, limit: int, effort: Effort) -> int:
    """Return what `cheapest` does, for one settled part."""
    bound = Bound(forest, bonus, min(limit, 0), effort)
    best = bound.best
    if bound.low >= best:
        return best
    # A node whose path costs more than the gap, after all rewards that can pay for it, is in no better set.
    due = [0] * (len(forest.parents) + 1)
    near = []
    for i, parent in enumerate(forest.parents):
        due[i] = due[parent] + bound.slack[i]
        if bound.low + due[i] < best:
            near.append(i)
    effort.depth += 1
    if len(near) < len(forest.parents):
        best = cheapest(forest.only(near), bonus, best, effort)
    else:
        node = max(near, key=lambda i: (forest.prices[i], -i))
        first = bound.paid_for(node)
        for opened in (first, not first):
            best = _decided(forest, node, opened, bonus, best, effort)
    effort.depth -= 1
    return best


def _decided(forest: Forest, node: int, opened: bool, bonus: int, limit: int, effort: Effort) -> int:
    if not opened:
        shut = bytearray(len(forest.parents) + 1)
        for i, parent in enumerate(forest.parents):
            shut[i] = i == node or shut[parent]
        return cheapest(forest.only([i for i in range(len(forest.parents)) if not shut[i]]), bonus, limit, effort)
    prices = forest.prices[:]
    cost = 0
    while node >= 0:
        cost += prices[node]
        prices[node] = 0
        node = forest.parents[node]
    return cost + cheapest(Forest(forest.parents, prices, forest.covers), bonus, limit - cost, effort)
