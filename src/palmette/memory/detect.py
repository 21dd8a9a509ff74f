"""The devices of this machine, asked without torch: nvidia-smi, /proc/meminfo, the limits of control groups."""

import shutil
import subprocess
from pathlib import Path

from palmette.memory.devices import Device

_MIB = 2**20
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


def detect_devices() -> tuple[Device, ...]:
    """Return the GPUs that nvidia-smi names, then the host."""
    return (*detect_gpus(), detect_host())


def detect_gpus() -> tuple[Device, ...]:
    """Return the GPUs in nvidia-smi's order, none where it is not installed or does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        done = subprocess.run(
            [command, "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        sizes = [
            [int(number) * _MIB for number in line.split(",")] for line in done.stdout.splitlines() if line.strip()
        ]
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    return tuple(Device(f"cuda:{index}", "cuda", total, free) for index, (total, free) in enumerate(sizes))


def detect_host(root: Path = Path("/")) -> Device:
    """Return the host: its memory, or a smaller limit set on this process's control group."""
    fields = _meminfo(root / "proc/meminfo")
    total, free = fields.get("MemTotal"), fields.get("MemAvailable")
    for folder, limit_file, used_file, cached in _CGROUPS:
        limit, used = _number(root / folder / limit_file), _number(root / folder / used_file) or 0
        if limit is not None and (total is None or limit < total):
            total = limit
            stat = _stat(root / folder / "memory.stat")
            used = max(0, used - sum(stat.get(name, 0) for name in cached))
            free = min(limit if free is None else free, max(0, limit - used))
    return Device("cpu", "cpu", total, free)


def _meminfo(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs if rest.split()[0].isdecimal()}


def _stat(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
