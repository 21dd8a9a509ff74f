"""Frees unused memory between phases: Python's garbage, the GPU allocator's cache, free pages of the C heap."""

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
    """The bytes that each try freed; negative where something else grew meanwhile."""

    tries: tuple[int, ...]
    held_bytes: int
    seconds: float

    @property
    def total_bytes(self) -> int:
        """The bytes that all tries freed together."""
        return sum(self.tries)


def reclaim(
    held_bytes: Callable[[], int], free: Callable[[], None] | None = None, *, least_bytes: int = LEAST_BYTES
) -> Freed:
    """Free unused memory up to three times; stop after a try that frees less than `least_bytes`.

    `held_bytes` returns what the process holds, `free` frees memory and is `free_unused` by default. A second try
    helps where objects freed by the first kept others alive: finalizers, caches of a library.
    """
    begun = time.monotonic()
    before, tries = held_bytes(), list[int]()
    while len(tries) < MOST_TRIES:
        (free or free_unused)()
        now = held_bytes()
        tries.append(before - now)
        before = now
        if tries[-1] < least_bytes:
            break
    return Freed(tuple(tries), before, time.monotonic() - begun)


def free_unused() -> None:
    """Collect garbage, then return free memory to the system: the GPU's where torch uses one, and the C heap's."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()
    trim_heap()
