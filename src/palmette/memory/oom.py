"""Out-of-memory errors: how they are recognized, and what the user is told."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from palmette.errors import BackendError, PalmetteError
from palmette.memory.device import DeviceMemory
from palmette.units import format_bytes, one_line


@dataclass(frozen=True)
class CacheFull:
    """Memory ran out as a cache grew, so its size became its limit."""

    wanted_tokens: int
    limit_tokens: int
    reason: str


@runtime_checkable
class TellsCacheFull(Protocol):
    """A backend or a scorer with a cache that grows as needed, and stays at its size once memory ran out."""

    @property
    def cache_full(self) -> CacheFull | None:
        """The last time that the cache could not grow, None where it always could."""


_LONGEST_REASON = 200

_SAID = (
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
"""What C++ code says once it has become a RuntimeError: torch's allocators, CUDA's libraries, `mmap`, numpy."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or one that it was raised from, says that memory ran out.

    Our own errors are verdicts and not looked through, except BackendError, which stands for what a library raised.
    An error that only came up while another was handled is not taken for it.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, PalmetteError):
            if not isinstance(current, BackendError):
                return False
        elif _says_so(current):
            return True
        current = current.__cause__
    return False


def reason_of(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return one_line(f"{type(error).__name__}: {error}", _LONGEST_REASON)


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By name: torch need not be loaded to recognize its errors.
    if any(kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch") for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def out_of_memory_message(
    name: str,
    unit: str,
    tried: Sequence[int],
    reading: DeviceMemory,
    planned_bytes: int | None = None,
    limit_bytes: int | None = None,
    advice: str = "",
) -> str:
    """Return the message for a piece that failed at the last of the sizes tried."""
    smallest = tried[-1]
    sizes = ", ".join(str(size) for size in dict.fromkeys(tried))
    plan = f"Planned {format_bytes(planned_bytes)}; the" if planned_bytes is not None else "The"
    limit = "" if limit_bytes is None else f" of {format_bytes(limit_bytes)} that it may hold"
    held = f"this process holds {format_bytes(reading.held_bytes)}{limit}"
    if reading.other_bytes is not None and reading.other_bytes > reading.total_bytes // 100:
        held = f"{held}, other processes hold {format_bytes(reading.other_bytes)}"
    return (
        f"out of memory at the smallest {name} ({smallest} {unit}{'' if smallest == 1 else 's'}, tried {sizes}). "
        f"{plan} device has {format_bytes(reading.free_bytes)} free: {held}.{advice and ' '}{advice}"
    )


def over_limit_message(held_bytes: int, limit_bytes: int) -> str:
    """Return why a piece was made smaller before it was tried."""
    return f"{format_bytes(held_bytes)} held, the limit is {format_bytes(limit_bytes)}"
