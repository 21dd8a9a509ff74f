"""The C library's heap: how much of it is in use, and what is not given back to the system."""

import ctypes
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
