"""The C library's heap: how much is in use, what is given back to the system, which blocks are mapped."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


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
    """Return the bytes that malloc has handed out, mapped ones included; None where the C library does not tell.

    It walks over all free blocks: 0.1 to several milliseconds, too long for every sample.
    """
    library = _library()
    if library is None or not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo2
    info = library.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def trim_heap() -> bool:
    """Return free pages of the heap to the system; tell whether the C library could be asked to (glibc)."""
    library = _library()
    if library is None or not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(0)
    return True


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 128 * 2**10
"""glibc's own value before it begins to adapt."""
ADAPTED_BYTES = 32 * 2**20
"""The most that glibc adapts it to: where a process ends up that frees larger blocks."""

_told: list[int] = []
"""The size that this process has told the C library last."""


def map_large_blocks(from_bytes: int = LARGE_BYTES) -> bool:
    """Map every block of this size or more from now on; tell whether the C library could be told to (glibc).

    The system clears every page anew, which costs time: see docs/update.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    _told[:] = [from_bytes]
    return bool(mallopt(_M_MMAP_THRESHOLD, from_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, from_bytes))


@contextmanager
def mapped_blocks() -> Iterator[None]:
    """Map large blocks for a while; afterwards from the size told before, or else from where glibc would have gone."""
    before = _told[0] if _told else ADAPTED_BYTES
    map_large_blocks()
    try:
        yield
    finally:
        map_large_blocks(before)
