"""A forest of nodes to open, in whole numbers: what reductions, bounds and branching share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Scope = list[tuple[int, int, bool]]
"""The nodes on the paths to those that cover one cluster, children first: node, its parent, does it cover."""

DEEPEST = 150  # branchings on top of each other: three frames each, far from Python's limit of 1,000


class ExhaustedError(Exception):
    """The effort allowed was spent before the optimum was proven. Never shown to users: the caller has another way."""


@dataclass
class Effort:
    """Elementary steps that a search may still take, each about a third of a microsecond; a count, so runs repeat."""

    left: int
    depth: int = 0

    def spend(self, steps: int) -> None:
        """Take `steps` from what is left. Raises ExhaustedError below zero."""
        self.left -= steps
        if self.left < 0 or self.depth > DEEPEST:
            raise ExhaustedError


@dataclass(frozen=True)
class Forest:
    """Nodes that can be opened, parents before children; a node opens only below an open parent, -1 is always open.

    Opening node `i` costs `prices[i]`, below zero if it pays, and covers the clusters in the bit mask `covers[i]`.
    """

    parents: list[int]
    prices: list[int]
    covers: list[int]

    def only(self, kept: list[int]) -> "Forest":
        """Return the forest of the nodes `kept`, which ascend and hold the parents of all they hold."""
        place = {old: new for new, old in enumerate(kept)} | {-1: -1}
        parents = [place[self.parents[i]] for i in kept]
        return Forest(parents, [self.prices[i] for i in kept], [self.covers[i] for i in kept])


def union(covers: Iterable[int]) -> int:
    """Return the mask of all clusters in `covers`."""
    every = 0
    for own in covers:
        every |= own
    return every


def split(forest: Forest) -> list[Forest]:
    """Return the parts that share neither a root nor a cluster, smallest first; none for an empty forest."""
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
    return [forest.only(part) for part in sorted(members, key=len)]


def scopes(forest: Forest) -> dict[int, Scope]:
    """Return each cluster's scope by its bit, those with the fewest ways to earn their reward first."""
    found: dict[int, dict[int, bool]] = {}
    for i, own in enumerate(forest.covers):
        for cluster in bits(own):
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
    """Yield the bits of `mask`, each as a mask of its own, the lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low
