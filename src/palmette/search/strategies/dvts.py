"""Diverse verifier tree search (DVTS): independent subtrees, of which each keeps its own best leaf.

As published by Hugging Face, with ceil(sqrt(width)) subtrees. The children of the prompt are divided among the subtrees
in the order in which they were added.
"""

import math

from palmette.strategy import Children, Frontier, Strategy, spread


class Dvts(Strategy):
    """Divides the tree into ceil(sqrt(width)) independent subtrees, of which each keeps its own best leaf."""

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Keep the best leaf of each subtree and share the width evenly among those leaves."""
        if frontier.leaves == (0,):
            return {0: width}
        firsts = [node.id for node in frontier.tree.nodes if node.parent == 0]
        subtrees = math.isqrt(len(firsts) - 1) + 1
        best: dict[int, int] = {}
        for leaf, _ in frontier.ranked():
            first = frontier.tree.path(leaf)[1].id
            best.setdefault(firsts.index(first) * subtrees // len(firsts), leaf)
        return spread(list(best.values()), width)


plugin = Dvts
