"""Memory as the Linux kernel reports it: the machine's, this process's, and the limits set on it."""

import os
import resource
from functools import cache
from pathlib import Path

from palmette.cgroups import own_groups

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)
"""For cgroup version 2 and 1: the folder, and the files or keys of the limit, the usage and the page cache in it."""


def cgroup_limits(root: Path = Path("/")) -> list[tuple[int, int]]:
    """Return each memory limit on this process with the bytes used of it: of its cgroup and of every group above it.

    The page cache does not count as used: the kernel drops it before an allocation fails.
    """
    found = []
    for folder, limit_file, used_file, cached in _CGROUPS:
        for group in own_groups(folder, "memory" if folder.endswith("memory") else "", root):
            limit = _number(group / limit_file)
            if limit is not None:
                stat = numbers(group / "memory.stat")
                used = (_number(group / used_file) or 0) - sum(stat.get(name, 0) for name in cached)
                found.append((limit, max(0, used)))
    return found


def memory_info(root: Path = Path("/")) -> dict[str, int]:
    """Return the values of /proc/meminfo in bytes by their names, such as MemTotal; empty on other systems."""
    return {name.removesuffix(":"): size * 1024 for name, size in numbers(root / "proc/meminfo").items()}


def numbers(path: Path) -> dict[str, int]:
    """Return the second word of each line, where it is a number, by the first; empty where there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # A cgroup without a limit says "max".


def resident_bytes() -> int:
    """Return the resident memory of this process; its peak so far where /proc cannot be read."""
    try:
        return int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mapped_bytes() -> int | None:
    """Return the size of this process's address space, None where /proc cannot be read."""
    try:
        return int(_read("/proc/self/statm").split()[0]) * _PAGE_BYTES
    except OSError:
        return None


def peak_bytes() -> int | None:
    """Return the peak of resident memory since the last reset, None where the kernel does not report it."""
    try:
        _, found, rest = _read("/proc/self/status").partition(b"VmHWM:")
    except OSError:
        return None
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else None


def reset_peak() -> bool:
    """Begin a new peak; return whether the kernel allows that."""
    try:
        os.write(_opened("/proc/self/clear_refs", os.O_WRONLY, os.getpid()), b"5")
    except OSError:
        return False
    return True


def machine_bytes() -> int:
    """Return the machine's whole memory."""
    return _PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")


def total_bytes() -> int:
    """Return the most that this process could hold: the machine's memory, or a smaller limit set on the process."""
    totals = [machine_bytes()]
    totals += [limit for limit, _ in cgroup_limits()]
    if (limit := _address_space_limit()) is not None:
        totals.append(limit)
    return min(totals)


def free_bytes() -> int:
    """Return what can still be allocated: available memory, or what a smaller limit leaves."""
    left = [available_bytes()]
    left += [limit - used for limit, used in cgroup_limits()]
    if (limit := _address_space_limit()) is not None and (mapped := mapped_bytes()) is not None:
        left.append(limit - mapped)
    return max(0, min(left))


def available_bytes() -> int:
    """Return the machine's memory that is free or can be freed at once."""
    available = memory_info().get("MemAvailable")
    return _PAGE_BYTES * os.sysconf("SC_AVPHYS_PAGES") if available is None else available


def _address_space_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _read(path: str) -> bytes:
    return os.pread(_opened(path, os.O_RDONLY, os.getpid()), 1 << 14, 0)


@cache
def _opened(path: str, flags: int, process: int) -> int:
    """Return the descriptor of a file that stays open, since opening it costs more than reading it.

    The process id is part of the cache key: after a fork, /proc/self is another process.
    """
    return os.open(path, flags | os.O_CLOEXEC)
