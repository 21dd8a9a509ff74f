"""The covering problem on a forest, in integers, with the operations that reductions, bounds and branching share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Scope = list[tuple[int, int, bool]]
"""All nodes on the paths to the nodes that cover one cluster, children first: node, parent, whether it covers."""

DEEPEST = 150  # nested branchings; each takes three Python frames, far below the recursion limit of 1,000


class ExhaustedError(Exception):
    """The effort allowed was spent before the optimum was proven. Callers catch it and use another method."""


@dataclass
class Effort:
    """How many elementary steps a solver may still take, each about a third of a microsecond.

    A count of steps instead of a time limit, so that a run gives the same result on every machine.
    """

    left: int
    depth: int = 0

    def spend(self, steps: int) -> None:
        """Subtract `steps`. Raises ExhaustedError if fewer than 0 are left or branchings are nested too deep."""
        self.left -= steps
        if self.left < 0 or self.depth > DEEPEST:
            raise ExhaustedError


@dataclass(frozen=True)
class Forest:
    """Nodes that can be opened, each only if its parent is open. Parents come before children; -1 stands for no parent.

    Opening node `i` costs `prices[i]`, a gain if negative, and covers the clusters in the bit mask `covers[i]`. A
    solver chooses which nodes to open. Every cluster covered by at least one open node earns the same bonus once.
    """

    parents: list[int]
    prices: list[int]
    covers: list[int]

    def restricted_to(self, kept: list[int]) -> "Forest":
        """Return the forest of the nodes `kept` alone, an ascending list that includes the parent of each of them."""
        place = {old: new for new, old in enumerate(kept)} | {-1: -1}
        parents = [place[self.parents[i]] for i in kept]
        return Forest(parents, [self.prices[i] for i in kept], [self.covers[i] for i in kept])


def union(covers: Iterable[int]) -> int:
    """Return the mask of the clusters in any of `covers`."""
    every = 0
    for mask in covers:
        every |= mask
    return every


def split(forest: Forest) -> list[Forest]:
    """Return independent parts, which share neither a root nor a cluster, smallest first; none for an empty forest."""
    tops: list[int] = []
    masks: dict[int, int] = {}
    for i, parent in enumerate(forest.parents):
        tops.append(i if parent < 0 else tops[parent])
        masks[tops[i]] = masks.get(tops[i], 0) | forest.covers[i]
    groups: list[tuple[int, list[int]]] = []
    for top, mask in masks.items():
        together = [top]
        apart = []
        for other, others in groups:
            if other & mask:
                mask |= other
                together += others
            else:
                apart.append((other, others))
        groups = [*apart, (mask, together)]
    if len(groups) < 2:
        return [forest] if groups else []
    which = {top: group for group, (_, together) in enumerate(groups) for top in together}
    members: list[list[int]] = [[] for _ in groups]
    for i, top in enumerate(tops):
        members[which[top]].append(i)
    return [forest.restricted_to(part) for part in sorted(members, key=len)]


def scopes(forest: Forest) -> dict[int, Scope]:
    """Return the scope of each cluster by its bit, clusters covered by the fewest nodes first."""
    found: dict[int, dict[int, bool]] = {}
    for i, mask in enumerate(forest.covers):
        for cluster in bits(mask):
            nodes = found.setdefault(cluster, {})
            nodes[i] = True
            parent = forest.parents[i]
            while parent >= 0 and parent not in nodes:
                nodes[parent] = False
                parent = forest.parents[parent]
    order = sorted(found, key=lambda cluster: (sum(found[cluster].values()), cluster))
    return {
        cluster: [(i, forest.parents[i], found[cluster][i]) for i in sorted(found[cluster], reverse=True)]
        for cluster in order
    }


def bits(mask: int) -> Iterator[int]:
    """Yield the set bits of `mask`, each as a mask with that bit alone, lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low
