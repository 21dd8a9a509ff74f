"""The set of leaves worth its cost, proven best: linear time without clusters, branch and bound with them.

A set is worth the values of its leaves, minus the cost of every node on their paths once, plus a bonus for every
cluster that it holds a leaf of. The numbers given are taken as exact, and the arithmetic is exact: two sets tie only
if they are worth precisely the same. Of two sets that tie the one is taken that holds the first leaf in which they
differ, in the order of a walk through the tree that goes down before it goes on and takes older children first. So
a leaf that changes nothing is kept, and of twins the older.

Past `STEPS` of effort HiGHS finds the optimum instead, to the accuracy of its own floats and with ties as it finds
them; no tree of up to 256 leaves needed this at weights that were published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from palmette.search.ets_solver import milp
from palmette.search.ets_solver.covering import cheapest
from palmette.search.ets_solver.forest import Effort, ExhaustedError, Forest

Number = int | float | Fraction

STEPS = 1_000_000  # about a third of a second; at width 1,024 HiGHS takes 0.1 to 15


@dataclass(frozen=True)
class Candidates:
    """The open leaves of one tree and what keeping them means.

    `values` names the leaves. `parents` and `costs` hold every node on their paths, None above the root. `clusters`
    may leave leaves out: those are in no cluster. All numbers are finite, `costs` and `bonus` are not negative.
    """

    parents: Mapping[int, int | None]
    values: Mapping[int, Number]
    costs: Mapping[int, Number]
    clusters: Mapping[int, int] = field(default_factory=dict)
    bonus: Number = 0


@dataclass(frozen=True)
class Selection:
    """The leaves kept, oldest first, and what they are worth. No set is worth more than `worth + gap`."""

    leaves: tuple[int, ...]
    worth: float
    gap: float = 0.0


def select(candidates: Candidates) -> Selection:
    """Return the best set of at least one leaf. Raises ValueError for a tree or a number that cannot be."""
    scale, (values, costs, extra) = whole(candidates.values, candidates.costs, {0: candidates.bonus})
    shape = plant(candidates, costs)
    if extra[0] < 0:
        raise ValueError("the bonus is negative")
    # Below the whole units each leaf has a bit of its own, the first leaf the highest: the least cost then breaks
    # ties as promised, and its low bits spell the set.
    count = len(shape.order)
    prices = [cost << count for cost in shape.costs]
    mark = 1 << count
    for place, leaf in zip(shape.ends, shape.order, strict=True):
        mark >>= 1
        prices[place] -= (values[leaf] << count) + mark
    cost = least(Forest(shape.parents, prices, shape.covers), extra[0] << count, (1 << count) - 1)
    kept = -cost % (1 << count)
    leaves = tuple(sorted(leaf for bit, leaf in zip(f"{kept:0{count}b}", shape.order, strict=True) if bit == "1"))
    return Selection(leaves, float(Fraction(((-cost - kept) >> count) - shape.trunk, scale)))


def least(forest: Forest, bonus: int, marks: int) -> int:
    """Return the least cost of opening a part of `forest` that leaves a mark: a bit of `marks` in the cost.

    Where opening nothing is best, every part that can be opened costs something; what two roots cost together is no
    less than their sum, so the best part lies below one root alone. Nodes stand in the order of a walk.
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
            own = paid + part.prices[top] - bonus * part.covers[top].bit_count()
            if end == top + 1:
                found.append(own)
            else:
                parents = [parent - top - 1 if parent > top else -1 for parent in part.parents[top + 1 : end]]
                below = Forest(parents, part.prices[top + 1 : end], part.covers[top + 1 : end])
                waiting.append((below, own))
    return min(found)


def cheapest_or_highs(forest: Forest, bonus: int, effort: Effort) -> int:
    """Return the least cost of opening any part of `forest`, by HiGHS where the proof takes more than `STEPS`.

    Raises ExhaustedError where `effort` does not cover what this took; a call of HiGHS counts as `STEPS`.
    """
    own = Effort(STEPS)
    try:
        cost = cheapest(forest, bonus, 1, own)
    except ExhaustedError:
        cost = milp.cheapest(forest, bonus)
        own.left -= STEPS
    effort.spend(STEPS - own.left)
    return cost


@dataclass(frozen=True)
class Shape:
    """A tree whose nodes without a choice between children are joined to the node below.

    Nodes stand in the order of the walk, `parents[i] < i`, -1 for the trunk that all paths share. The leaves stand
    in the same order: `order` names them, `ends` holds their places. Joined nodes cost what their parts cost.
    """

    parents: list[int]
    costs: list[int]
    covers: list[int]
    order: list[int]
    ends: list[int]
    trunk: int


def plant(candidates: Candidates, costs: Mapping[int, int]) -> Shape:
    """Return the shape of the candidates' tree. Raises ValueError where it is none, or a cost is negative."""
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
    shape = Shape([], [], [], [], [], trunk)
    walk = [(top, -1) for top in reversed(tops)]
    while walk:
        node, parent = walk.pop()
        cost = costs[node]
        while (below := children.get(node)) and len(below) == 1:
            node = below[0]
            cost += costs[node]
        if (below is None) != (node in candidates.values):
            raise ValueError(f"node {node} is {'a candidate, but has children' if below else 'no candidate'}")
        place = len(shape.parents)
        shape.parents.append(parent)
        shape.costs.append(cost)
        if below:
            shape.covers.append(0)
            walk += [(child, place) for child in reversed(below)]
        else:
            label = candidates.clusters.get(node)
            shape.covers.append(0 if label is None else marks[label])
            shape.order.append(node)
            shape.ends.append(place)
    if len(shape.order) != len(candidates.values):
        raise ValueError(f"{len(candidates.values)} candidates, but {len(shape.order)} leaves hang on the root")
    return shape


def whole(*tables: Mapping[int, Number]) -> tuple[int, list[dict[int, int]]]:
    """Return a scale and the tables times it, in whole numbers. Raises ValueError for a number that is not finite."""
    try:
        ratios = [{key: number.as_integer_ratio() for key, number in table.items()} for table in tables]
    except OverflowError as infinite:
        raise ValueError(str(infinite)) from None
    scale = lcm(*{below for table in ratios for _, below in table.values()})
    return scale, [{key: above * (scale // below) for key, (above, below) in table.items()} for table in ratios]
