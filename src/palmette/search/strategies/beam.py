"""Beam search: keeps the best ceil(sqrt(width)) leaves and shares the width evenly among them."""

import math

from palmette.strategy import Children, Frontier, Strategy, spread


class Beam(Strategy):
    """Keeps the best ceil(sqrt(width)) leaves and shares the width evenly among them."""

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Give the best leaves of the whole frontier equal numbers of children and prune the others."""
        kept = [leaf for leaf, _ in frontier.ranked()[: math.isqrt(width - 1) + 1]]
        return spread(kept, width)


plugin = Beam
