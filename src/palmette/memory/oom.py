"""Out-of-memory errors: how they are recognized, and the messages about them."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from palmette.errors import BackendError, PalmetteError
from palmette.memory.device import DeviceMemory
from palmette.units import count_of, format_bytes


@dataclass(frozen=True)
class CacheFull:
    """A KV cache could not grow because memory ran out: its present size became its limit."""

    wanted_tokens: int
    limit_tokens: int
    reason: str


@runtime_checkable
class TellsCacheFull(Protocol):
    """A backend or a scorer with a KV cache that grows as needed, and keeps its size once memory ran out."""

    @property
    def cache_full(self) -> CacheFull | None:
        """The last time that the cache could not grow, None where it always could."""


_MESSAGES = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cuda out of memory",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "std::bad_alloc",
    "cannot allocate memory",
    "unable to allocate",
)
"""Parts of the messages of RuntimeErrors that C++ code raises: torch's allocators, CUDA's libraries, mmap, numpy."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that memory ran out.

    Causes of palmette's own errors are not looked at, except those of BackendError, which wraps what a library raised.
    An error that came up while an out-of-memory error was handled does not count.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, PalmetteError):
            if not isinstance(current, BackendError):
                return False
        elif _is_memory_error(current):
            return True
        current = current.__cause__
    return False


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By name: torch need not be loaded to recognize its errors.
    if any(kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch") for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error).lower() for message in _MESSAGES)


def out_of_memory_message(
    name: str,
    unit: str,
    tried: Sequence[int],
    reading: DeviceMemory,
    planned_bytes: int | None = None,
    limit_bytes: int | None = None,
    advice: str = "",
) -> str:
    """Return the message for work that failed even at the last, the smallest, of the sizes tried."""
    smallest = tried[-1]
    sizes = ", ".join(str(size) for size in dict.fromkeys(tried))
    plan = f"Planned {format_bytes(planned_bytes)}; the" if planned_bytes is not None else "The"
    limit = "" if limit_bytes is None else f" of {format_bytes(limit_bytes)} that it may hold"
    holders = f"this process holds {format_bytes(reading.held_bytes)}{limit}"
    if reading.other_bytes is not None and reading.other_bytes > reading.total_bytes // 100:
        holders = f"{holders}, other processes hold {format_bytes(reading.other_bytes)}"
    return (
        f"out of memory at the smallest {name} ({count_of(smallest, unit)}, tried {sizes}). "
        f"{plan} device has {format_bytes(reading.free_bytes)} free: {holders}.{advice and ' '}{advice}"
    )


def over_limit_message(held_bytes: int, limit_bytes: int) -> str:
    """Return why a piece was halved before it was tried."""
    return f"{format_bytes(held_bytes)} held, the limit is {format_bytes(limit_bytes)}"
