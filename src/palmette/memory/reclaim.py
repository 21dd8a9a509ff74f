"""Gives memory back between phases: collects garbage, empties the device's cache, returns the heap's free pages."""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from palmette.memory.heap import trim_heap

LEAST_BYTES = 2**30
MOST_TRIES = 3


@dataclass(frozen=True)
class Freed:
    """What each try really freed, in bytes; below zero where something else grew meanwhile."""

    tries: tuple[int, ...]
    held_bytes: int
    seconds: float

    @property
    def total_bytes(self) -> int:
        """Return what all tries freed together."""
        return sum(self.tries)


def reclaim(
    held: Callable[[], int], sweep: Callable[[], None] | None = None, *, least_bytes: int = LEAST_BYTES
) -> Freed:
    """Sweep up to three times, and stop after a try that frees less than `least_bytes`.

    A second try pays where objects freed by the first held others: finalizers, caches of a library.
    """
    begun = time.monotonic()
    before, tries = held(), list[int]()
    while len(tries) < MOST_TRIES:
        (sweep or sweep_all)()
        now = held()
        tries.append(before - now)
        before = now
        if tries[-1] < least_bytes:
            break
    return Freed(tuple(tries), before, time.monotonic() - begun)


def sweep_all() -> None:
    """Collect garbage, then hand free memory back: the GPU's where torch uses one, and the C heap's."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()
    trim_heap()
