"""Files in which the Linux kernel tells of memory, read into numbers."""

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
