"""What the host tells of memory: its own, this process's, and every limit set on it. Linux, by /proc."""

import os
import resource
from functools import cache

from palmette.memory.kernel import group_limits, memory_info

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return what this process holds in memory now; its peak so far where /proc cannot be read."""
    try:
        return int(_read("/proc/self/statm").split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mapped_bytes() -> int | None:
    """Return the address space that this process has taken, None where /proc cannot be read."""
    try:
        return int(_read("/proc/self/statm").split()[0]) * _PAGE
    except OSError:
        return None


def peak_bytes() -> int | None:
    """Return the most that was resident since the last reset, None where the kernel does not tell."""
    try:
        _, found, rest = _read("/proc/self/status").partition(b"VmHWM:")
    except OSError:
        return None
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else None


def reset_peak() -> bool:
    """Begin a new peak; tell whether the kernel allowed it."""
    try:
        os.write(_opened("/proc/self/clear_refs", os.O_WRONLY, os.getpid()), b"5")
    except OSError:
        return False
    return True


def machine_bytes() -> int:
    """Return the machine's memory."""
    return _PAGE * os.sysconf("SC_PHYS_PAGES")


def total_bytes() -> int:
    """Return what this process could hold at the most: the machine's memory, or a smaller limit set on it."""
    totals = [machine_bytes()]
    totals += [limit for limit, _ in group_limits()]
    if (cap := _address_space()) is not None:
        totals.append(cap)
    return min(totals)


def free_bytes() -> int:
    """Return what can still be taken: available memory, or what a smaller limit leaves."""
    left = [available_bytes()]
    left += [limit - used for limit, used in group_limits()]
    if (cap := _address_space()) is not None and (mapped := mapped_bytes()) is not None:
        left.append(cap - mapped)
    return max(0, min(left))


def available_bytes() -> int:
    """Return the machine's memory that is free or can be freed at once."""
    available = memory_info().get("MemAvailable")
    return _PAGE * os.sysconf("SC_AVPHYS_PAGES") if available is None else available


def _address_space() -> int | None:
    cap, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if cap == resource.RLIM_INFINITY else cap


def _read(path: str) -> bytes:
    return os.pread(_opened(path, os.O_RDONLY, os.getpid()), 1 << 14, 0)


@cache
def _opened(path: str, flags: int, process: int) -> int:
    """Return a file that stays open: opening one costs more than reading it. After a fork, "self" is another one."""
    return os.open(path, flags | os.O_CLOEXEC)
