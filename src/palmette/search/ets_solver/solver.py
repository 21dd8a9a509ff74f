"""Selects the set of leaves worth most, proven optimal: linear time without clusters, branch and bound with them.

The worth of a set is the sum of the values of its leaves, minus the costs of all nodes on their paths (each node once),
plus a bonus for every cluster with a leaf in the set. All arithmetic is exact: two sets tie only if their worths are
exactly equal. Ties are broken by leaf, in depth-first order with older children first: of two sets with equal worth,
the one that holds the first leaf in which they differ wins. So a leaf that neither adds nor costs anything is kept, and
of two equivalent leaves the older one.

If the proof takes more than `STEPS` of effort, HiGHS computes the optimum instead, with the precision of its floats and
its own choice among ties. No tree of up to 256 leaves needed this at the published weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from palmette.search.ets_solver import milp
from palmette.search.ets_solver.covering import cheapest
from palmette.search.ets_solver.forest import Effort, ExhaustedError, Forest

Number = int | float | Fraction

STEPS = 1_000_000  # about a third of a second; at width 1,024 HiGHS takes 0.1 to 15 seconds


@dataclass(frozen=True)
class Candidates:
    """The leaves to choose from, with what keeping each is worth and costs.

    `values` has one entry for each leaf. `parents` and `costs` have one entry for each node on the paths of the leaves;
    the parent of the root is None. `clusters` maps a leaf to its cluster; leaves without an entry are in none. All
    numbers are finite, `costs` and `bonus` are not negative.
    """

    parents: Mapping[int, int | None]
    values: Mapping[int, Number]
    costs: Mapping[int, Number]
    clusters: Mapping[int, int] = field(default_factory=dict)
    bonus: Number = 0


@dataclass(frozen=True)
class Selection:
    """The leaves to keep, in ascending order, and what they are worth. No set is worth more than `worth + gap`."""

    leaves: tuple[int, ...]
    worth: float
    gap: float = 0.0


def select(candidates: Candidates) -> Selection:
    """Return the best set with at least one leaf.

    Raises ValueError if the nodes are not one tree with these leaves, a cost or the bonus is negative, or a number is
    not finite.
    """
    scale, (values, costs, extra) = to_integers(candidates.values, candidates.costs, {0: candidates.bonus})
    tree = compress(candidates, costs)
    if extra[0] < 0:
        raise ValueError("the bonus is negative")
    # Shift all numbers left by one bit for each leaf and use these low bits as marks, the first leaf the highest:
    # keeping a leaf lowers the cost by its mark. The least cost then breaks ties as described above, and its low bits
    # are the set.
    count = len(tree.order)
    prices = [cost << count for cost in tree.costs]
    mark = 1 << count
    for place, leaf in zip(tree.ends, tree.order, strict=True):
        mark >>= 1
        prices[place] -= (values[leaf] << count) + mark
    cost = least_with_leaf(Forest(tree.parents, prices, tree.covers), extra[0] << count, (1 << count) - 1)
    kept = -cost % (1 << count)
    leaves = tuple(sorted(leaf for bit, leaf in zip(f"{kept:0{count}b}", tree.order, strict=True) if bit == "1"))
    return Selection(leaves, float(Fraction(((-cost - kept) >> count) - tree.trunk, scale)))


def least_with_leaf(forest: Forest, bonus: int, marks: int) -> int:
    """Return the least cost of a set of open nodes with at least one leaf, which shows as a bit of `marks` in the cost.

    Nodes are in depth-first order. If opening nothing is cheapest, every set of open nodes has a positive cost, and
    sets below two roots cost together no less than the sum of both: the best set lies below one root alone. So each
    root is opened by itself and the nodes below it are solved in the same way.
    """
    found: list[int] = []
    waiting = [(forest, 0)]
    while waiting:
        part, paid = waiting.pop()
        cost = cheapest_or_highs(part, bonus, Effort(1 << 60))
        if cost & marks:
            found.append(paid + cost)
            continue
        tops = [i for i, parent in enumerate(part.parents) if parent < 0]
        for top, end in zip(tops, [*tops[1:], len(part.parents)], strict=True):
            opened = paid + part.prices[top] - bonus * part.covers[top].bit_count()
            if end == top + 1:
                found.append(opened)
            else:
                parents = [parent - top - 1 if parent > top else -1 for parent in part.parents[top + 1 : end]]
                below = Forest(parents, part.prices[top + 1 : end], part.covers[top + 1 : end])
                waiting.append((below, opened))
    return min(found)


def cheapest_or_highs(forest: Forest, bonus: int, effort: Effort) -> int:
    """Return the least cost of any set of open nodes, by HiGHS if the proof takes more than `STEPS`.

    What this took is subtracted from `effort`, with `STEPS` for a call of HiGHS. Raises ExhaustedError if that was more
    than `effort` had left.
    """
    proof = Effort(STEPS)
    try:
        cost = cheapest(forest, bonus, 1, proof)
    except ExhaustedError:
        cost = milp.cheapest(forest, bonus)
        proof.left -= STEPS
    effort.spend(STEPS - proof.left)
    return cost


@dataclass(frozen=True)
class CompressedTree:
    """A tree in which every node with one child is merged with that child; the costs of merged nodes are added.

    The nodes that all paths share, the trunk, are left out: `trunk` is their cost. The other nodes are numbered in
    depth-first order, so `parents[i] < i`, and -1 stands for the trunk. `order` holds the original ids of the leaves in
    depth-first order, `ends` the number of each leaf.
    """

    parents: list[int]
    costs: list[int]
    covers: list[int]
    order: list[int]
    ends: list[int]
    trunk: int


def compress(candidates: Candidates, costs: Mapping[int, int]) -> CompressedTree:
    """Return the candidates' tree with these integer costs, compressed.

    Raises ValueError if the nodes are not one tree whose leaves are the candidates, or if a cost is negative.
    """
    children: dict[int | None, list[int]] = {}
    for node in sorted(candidates.parents):
        children.setdefault(candidates.parents[node], []).append(node)
    tops = children.get(None, [])
    if len(tops) != 1 or not candidates.values:
        raise ValueError(f"{len(candidates.values)} leaves on {len(tops)} roots: needs a leaf and one root")
    if min(costs.values()) < 0:
        raise ValueError("a cost is negative")
    marks = {label: 1 << place for place, label in enumerate(dict.fromkeys(candidates.clusters.values()))}
    trunk = 0
    while len(tops) == 1 and tops[0] in children:
        trunk += costs[tops[0]]
        tops = children[tops[0]]
    tree = CompressedTree([], [], [], [], [], trunk)
    walk = [(top, -1) for top in reversed(tops)]
    while walk:
        node, parent = walk.pop()
        cost = costs[node]
        while (below := children.get(node)) and len(below) == 1:
            node = below[0]
            cost += costs[node]
        if (below is None) != (node in candidates.values):
            raise ValueError(f"node {node} is {'a candidate but has children' if below else 'no candidate'}")
        place = len(tree.parents)
        tree.parents.append(parent)
        tree.costs.append(cost)
        if below:
            tree.covers.append(0)
            walk += [(child, place) for child in reversed(below)]
        else:
            label = candidates.clusters.get(node)
            tree.covers.append(0 if label is None else marks[label])
            tree.order.append(node)
            tree.ends.append(place)
    if len(tree.order) != len(candidates.values):
        raise ValueError(f"{len(candidates.values)} candidates, but {len(tree.order)} leaves below the root")
    return tree


def to_integers(*tables: Mapping[int, Number]) -> tuple[int, list[dict[int, int]]]:
    """Return a common denominator of all numbers, and the tables multiplied by it, as integers.

    Raises ValueError for a number that is not finite.
    """
    try:
        ratios = [{key: number.as_integer_ratio() for key, number in table.items()} for table in tables]
    except OverflowError as infinite:
        raise ValueError(str(infinite)) from None
    scale = lcm(*{bottom for table in ratios for _, bottom in table.values()})
    return scale, [{key: top * (scale // bottom) for key, (top, bottom) in table.items()} for table in ratios]
