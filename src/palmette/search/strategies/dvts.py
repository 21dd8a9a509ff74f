"""Diverse verifier tree search: beams that never leave the subtree they began in.

As published by Hugging Face, with ceil(sqrt(width)) subtrees: the prompt's children are dealt to subtrees in order,
and each subtree keeps its own best leaf.
"""

import math

from palmette.strategy import Children, Frontier, Strategy, spread


class Dvts(Strategy):
    """Beams that never leave the subtree they began in."""

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Keep the best leaf of each subtree and share the width evenly between them."""
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
