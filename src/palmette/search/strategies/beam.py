"""Beam search: the best ceil(sqrt(width)) leaves share the width evenly."""

import math

from palmette.strategy import Children, Frontier, Strategy, spread


class Beam(Strategy):
    """The best ceil(sqrt(width)) leaves share the width evenly."""

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Keep the best leaves of the whole frontier."""
        kept = [leaf for leaf, _ in frontier.ranked()[: math.isqrt(width - 1) + 1]]
        return spread(kept, width)


plugin = Beam
