"""The devices of this machine, asked without torch: nvidia-smi, /proc/meminfo, the limits of control groups."""

import shutil
import subprocess
from pathlib import Path

from palmette.memory.devices import Device
from palmette.memory.kernel import group_limits, memory_info

_MIB = 2**20


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
    told = memory_info(root)
    total, free = told.get("MemTotal"), told.get("MemAvailable")
    for limit, used in group_limits(root):
        if total is None or limit < total:
            total = limit
            free = min(limit if free is None else free, max(0, limit - used))
    return Device("cpu", "cpu", total, free)
