"""Which errors mean that memory ran out, whoever raised them."""

import errno

from palmette.errors import BackendError, PalmetteError
from palmette.units import one_line

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
