"""The learning rate of each update: rising at first, then constant or falling."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_at(update: int, *, peak: float, schedule: Schedule, warmup_updates: int, updates: int) -> float:
    """Return the learning rate of an update, counted from 0, of so many updates.

    It rises linearly over the first `warmup_updates`, the last of which has the peak. After that it stays there, or
    falls to 0, which the update after the last would have.
    """
    if update < warmup_updates:
        return peak * (update + 1) / warmup_updates
    if schedule == "constant":
        return peak
    done = (update - warmup_updates) / max(1, updates - warmup_updates)
    return peak * (1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
