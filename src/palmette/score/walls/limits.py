"""Resource limits of the worker and of one check; the only walls on a system without the others."""

import math
import resource

MEMORY_BYTES = 2 * 2**30
OPEN_FILES = 64
"""No descriptor of the worker or of a check has this number or a higher one."""


def limit_worker() -> None:
    """Limit the address space, so that a huge power raises MemoryError instead of using up the machine's memory.

    And the open files, of which imports need a few at a time.
    """
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)


def limit_check(seconds: float) -> None:
    """Limit a process to `seconds` of CPU time and a moment; no files written, no processes, no core dump."""
    _limit(resource.RLIMIT_CPU, math.ceil(seconds) + 1)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NPROC, 0)  # not counted for root


def _limit(kind: int, most: int) -> None:
    try:
        resource.setrlimit(kind, (most, most))
    except (ValueError, OSError):
        pass  # a lower limit is already set, or the system has no such limit
