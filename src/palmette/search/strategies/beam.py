"""Beam search: the best ceil(sqrt(width)) leaves share the width evenly."""

import math

from palmette.search.strategy import Allocation, Frontier, spread


def allocate(frontier: Frontier, width: int, room: int | None) -> Allocation:
    """Keep the best leaves of the whole frontier."""
    kept = [leaf for leaf, _ in frontier.ranked()[: math.isqrt(width - 1) + 1]]
    return spread(kept, width)
