"""How many threads to use beside other processes: a pure decision from what the last interval looked like."""

import math
from dataclasses import dataclass, replace

from palmette.cores import CpuShares

_MISSING_CORES = 0.25
"""So many threads without a core, on average, are taken for a lack of cores."""
_FREE_CORES = 0.75
"""So much of a core that nobody uses is taken for a free one."""
SHORTEST_PATIENCE_SECONDS = 0.5
LONGEST_PATIENCE_SECONDS = 16.0


@dataclass(frozen=True)
class ThreadCount:
    """The number of threads now, and how long it stays before it may grow.

    `patience_seconds` doubles whenever a growth turns out to be too much at once, and is short again when one holds.
    """

    count: int
    patience_seconds: float = SHORTEST_PATIENCE_SECONDS
    held_seconds: float = 0.0
    has_grown: bool = False


def next_count(now: ThreadCount, most: int, shares: CpuShares) -> ThreadCount:
    """Return the number of threads for the next interval, from 1 to `most`.

    As many threads are given up as had no core: where equal processes share the cores, that leaves each its equal
    share if all decide at once. Free cores are taken again, after some patience.
    """
    if now.count > 1 and shares.missing >= _MISSING_CORES and shares.others >= _MISSING_CORES:
        fewer = max(1, now.count - math.ceil(shares.missing - _MISSING_CORES))
        if fewer == now.count:
            fewer -= 1
        patience = now.patience_seconds
        if now.has_grown:
            patience = min(2 * patience, LONGEST_PATIENCE_SECONDS)
        return ThreadCount(fewer, patience)
    held = replace(now, held_seconds=now.held_seconds + shares.seconds)
    if held.held_seconds < held.patience_seconds:
        return held
    if held.has_grown:  # It has held.
        held = replace(held, has_grown=False, patience_seconds=SHORTEST_PATIENCE_SECONDS)
    free = shares.cores - shares.others - now.count
    if now.count < most and free >= _FREE_CORES:
        more = min(most, now.count + max(1, math.floor(free + 1 - _FREE_CORES)))
        return ThreadCount(more, held.patience_seconds, has_grown=True)
    return held
