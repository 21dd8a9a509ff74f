"""The strategy contract: how many children each leaf of a frontier gets next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from palmette.tree import Tree

Allocation = dict[int, int]
"""Children granted per node; a node that is not named gets none."""


@dataclass(frozen=True)
class Frontier:
    """The open leaves of one tree, oldest first, with one folded score each.

    `clusters` labels leaves alike whose last steps say the same; empty where nobody asked.
    """

    tree: Tree
    leaves: tuple[int, ...]
    scores: tuple[float, ...]
    clusters: Mapping[int, int] = field(default_factory=dict)

    def ranked(self) -> list[tuple[int, float]]:
        """Return leaves with their scores, best first; ties go to the older node, so that a run repeats exactly."""
        return sorted(zip(self.leaves, self.scores, strict=True), key=lambda pair: (-pair[1], pair[0]))


Strategy = Callable[[Frontier, int, int | None], Allocation]
"""`allocate(frontier, width, room)`: a pure function.

`width` is what finished leaves have left of the run's width, at least 1; `room` is the number of KV tokens that the
tree may hold in all, prompt, paths and steps to come, None without a limit. The frontier is never empty. Children sum
to at most `width`; none at all end the tree.
"""


def spread(leaves: list[int], width: int) -> Allocation:
    """Share `width` evenly; what does not divide goes to the leaves named first."""
    each, rest = divmod(width, len(leaves))
    shares = {leaf: each + (place < rest) for place, leaf in enumerate(leaves)}
    return {leaf: count for leaf, count in shares.items() if count}
