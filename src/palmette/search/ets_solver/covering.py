"""Finds the cheapest nodes of a forest to open, where covered clusters earn a bonus: branch and bound in integers.

The problem is a prize-collecting group Steiner tree on a tree, NP-hard in general. Two things make it fast on search
trees: `reduce` decides nearly all nodes by rules of one pass each, and the bounds by dual ascent meet after few
branchings: 0 to 2 bounds are computed at the published weights, 1 to 29 at width 256 and twice the weight. All numbers
are Python integers: nothing is rounded, so the optimum is proven.
"""

from palmette.search.ets_solver.bound import Bound
from palmette.search.ets_solver.forest import Effort, Forest, split, union
from palmette.search.ets_solver.reduce import reduce


def cheapest(forest: Forest, bonus: int, limit: int, effort: Effort) -> int:
    """Return the least cost of any set of open nodes: their prices minus `bonus` for every cluster they cover.

    Returns `limit` if no set costs less than `limit`. Raises ExhaustedError if `effort` runs out first.
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
    """Return the same as `cheapest`, for one part of a reduced and split forest."""
    bound = Bound(forest, bonus, min(limit, 0), effort)
    best = bound.best
    if bound.low >= best:
        return best
    # A node is in no better set if the unpaid rest of its path is as large as the gap between the bounds.
    due = [0] * (len(forest.parents) + 1)
    near = []
    for i, parent in enumerate(forest.parents):
        due[i] = due[parent] + bound.slack[i]
        if bound.low + due[i] < best:
            near.append(i)
    effort.depth += 1
    if len(near) < len(forest.parents):
        best = cheapest(forest.restricted_to(near), bonus, best, effort)
    else:
        node = max(near, key=lambda i: (forest.prices[i], -i))
        first = bound.paid_for(node)
        for opened in (first, not first):
            best = _decided(forest, node, opened, bonus, best, effort)
    effort.depth -= 1
    return best


def _decided(forest: Forest, node: int, opened: bool, bonus: int, limit: int, effort: Effort) -> int:
    """Return the same as `cheapest`, among the sets in which `node` is open, or among those in which it is closed."""
    if not opened:
        closed = bytearray(len(forest.parents) + 1)
        for i, parent in enumerate(forest.parents):
            closed[i] = i == node or closed[parent]
        kept = [i for i in range(len(forest.parents)) if not closed[i]]
        return cheapest(forest.restricted_to(kept), bonus, limit, effort)
    prices = forest.prices[:]
    cost = 0
    while node >= 0:
        cost += prices[node]
        prices[node] = 0
        node = forest.parents[node]
    return cost + cheapest(Forest(forest.parents, prices, forest.covers), bonus, limit - cost, effort)
