"""Large blocks of host memory each in a mapping of its own, so that what is freed is given back at once.

glibc raises the size from which it maps blocks up to 32 MiB as a program frees them; everything below comes from a
heap that cannot shrink past its last block in use. Training frees blocks of many sizes: a seedling's update held 257
MiB that way for 80 MiB of tensors.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

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
