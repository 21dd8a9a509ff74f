"""The C library's heap: how much is in use, returning free pages, which block sizes are mapped."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 128 * 2**10
"""glibc's threshold at the start of a process, before it raises it as large blocks are freed."""
ADAPTED_BYTES = 32 * 2**20
"""The largest threshold that glibc raises itself to."""

_threshold_bytes: list[int] = []
"""The threshold that this process has set last; empty while glibc adapts it."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:
        return None


def heap_in_use() -> int | None:
    """Return the bytes that malloc has handed out, mapped blocks included; None where the C library cannot say.

    Takes 0.1 to several milliseconds, since it walks over all free blocks: too long for every sample.
    """
    library = _library()
    if library is None or not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo2
    info = library.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def trim_heap() -> bool:
    """Return the heap's free pages to the system; return whether the C library can do that (glibc)."""
    library = _library()
    if library is None or not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(0)
    return True


def map_large_blocks(from_bytes: int = LARGE_BYTES) -> bool:
    """Map every block of this size or more from now on; return whether the C library can do that (glibc).

    A mapped block goes back to the system as soon as it is freed. The system clears the pages of every new one, which
    costs time: see docs/update.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    _threshold_bytes[:] = [from_bytes]
    return bool(mallopt(_M_MMAP_THRESHOLD, from_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, from_bytes))


@contextmanager
def mapped_blocks() -> Iterator[None]:
    """Map large blocks inside the block of code; afterwards restore the threshold set before, or glibc's largest."""
    before = _threshold_bytes[0] if _threshold_bytes else ADAPTED_BYTES
    map_large_blocks()
    try:
        yield
    finally:
        map_large_blocks(before)
