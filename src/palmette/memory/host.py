"""What the Linux kernel tells of memory: the machine's, this process's, and every limit set on it."""

import os
import resource
from functools import cache
from pathlib import Path

_CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)
"""Folders of control groups, version 2 and 1: the limit, what is used, and the page cache in it that can be dropped."""


def group_limits(root: Path = Path("/")) -> list[tuple[int, int]]:
    """Return the limits of this process's control group with what it uses of each; of the innermost one alone.

    Pages of files do not count as used: the kernel drops them before anything fails.
    """
    found = []
    for folder, limit_file, used_file, cached in _CGROUPS:
        limit = _number(root / folder / limit_file)
        if limit is not None:
            stat = numbers(root / folder / "memory.stat")
            used = (_number(root / folder / used_file) or 0) - sum(stat.get(name, 0) for name in cached)
            found.append((limit, max(0, used)))
    return found


def memory_info(root: Path = Path("/")) -> dict[str, int]:
    """Return the machine's memory in bytes by the kernel's names, as MemTotal; nothing on other systems."""
    return {name.removesuffix(":"): size * 1024 for name, size in numbers(root / "proc/meminfo").items()}


def numbers(path: Path) -> dict[str, int]:
    """Return the second word of each line by its first, where that is a number; nothing where there is no file."""
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
    return int(text) if text.isdecimal() else None  # A group without a limit says "max".


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
