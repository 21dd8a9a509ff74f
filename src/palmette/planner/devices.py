"""Devices as people write them (`2x24GiB`, `cpu:24GiB`), or as this machine reports them without torch."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from palmette.errors import ConfigError
from palmette.memory.host import cgroup_limits, memory_info
from palmette.units import format_bytes, parse_bytes

DeviceKind = Literal["cuda", "cpu"]
_GPUS = re.compile(r"(?:(\d+)\s*x\s*)?(.+)", re.IGNORECASE | re.ASCII)
_MOST_GPUS = 1024
_MIB = 2**20


@dataclass(frozen=True)
class Device:
    """A GPU or the host. With `total_bytes` None its size is unknown: what it holds is counted but not checked.

    `free_bytes` is what other processes leave free on a detected device, None on a declared one.
    """

    name: str
    kind: DeviceKind
    total_bytes: int | None
    free_bytes: int | None = None

    def limit_bytes(self, share: float) -> int | None:
        """Return what a phase may hold: this share of the device, at most what is free; None for an unknown size."""
        if self.total_bytes is None:
            return None
        limit = int(self.total_bytes * share)
        return limit if self.free_bytes is None else min(limit, self.free_bytes)

    def __str__(self) -> str:
        return self.name if self.total_bytes is None else f"{self.name} ({format_bytes(self.total_bytes)})"


HOST = Device("cpu", "cpu", None)
"""The host where devices were declared without one."""


def parse_devices(text: str) -> tuple[Device, ...]:
    """Return the devices that a text declares: its GPUs as cuda:0, cuda:1, ..., then the host if it is named.

    Raises ConfigError where the text cannot be read.
    """
    if "node" in text.lower():
        raise ConfigError(
            f"devices {text[:80]!r} are a cluster, which palmette plan can plan; here write those of one machine, like "
            f"'2x24GiB'"
        )
    gpus: list[Device] = []
    host: Device | None = None
    for part in text.split(","):
        kind, colon, size = part.strip().partition(":")
        if colon and kind.lower() == "cpu":
            if host is not None:
                raise ConfigError(f"devices {text!r}: name the cpu once, with all of its memory")
            host = Device("cpu", "cpu", _size(text, size))
            continue
        match = _GPUS.fullmatch(part.strip())
        count = int(match[1] or 1) if match else 0
        if match is None or colon or not 0 < count <= _MOST_GPUS:
            raise _unreadable(text)
        total = _size(text, match[2])
        gpus += [Device(f"cuda:{len(gpus) + index}", "cuda", total) for index in range(count)]
    return (*gpus, host) if host is not None else tuple(gpus)


def written_size(device: Device) -> str:
    """Return a device's size as `--devices` takes it, in whole GiB or else rounded down to whole MiB."""
    size = device.total_bytes or 0
    return f"{size // 2**30}GiB" if size % 2**30 == 0 else f"{max(1, size // _MIB)}MiB"


def host_of(devices: Sequence[Device]) -> Device:
    """Return the host among the devices, or a host of unknown size."""
    return next((device for device in devices if device.kind == "cpu"), HOST)


def _size(text: str, size: str) -> int:
    if size.strip().replace(".", "", 1).isdecimal():
        meant = re.sub(r"(?<=[\d.])\s*(?=,|$)", "GiB", text.strip())
        raise ConfigError(f"devices {text[:80]!r}: {size.strip()} of what? Write {meant[:80]!r} if GiB are meant")
    try:
        total = parse_bytes(size)
    except ConfigError:
        raise _unreadable(text) from None
    if total <= 0:
        raise ConfigError(f"devices {text!r}: a device of 0 bytes holds nothing")
    return total


def _unreadable(text: str) -> ConfigError:
    return ConfigError(f"devices {text[:80]!r} cannot be read: write them like '2x24GiB', '1x80GiB' or 'cpu:24GiB'")


def detect_devices() -> tuple[Device, ...]:
    """Return the GPUs that nvidia-smi lists, then the host."""
    return (*detect_gpus(), detect_host())


def detect_gpus() -> tuple[Device, ...]:
    """Return the GPUs in nvidia-smi's order; none where it is not installed or fails."""
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
    """Return the host with its memory, or with a smaller limit of this process's cgroup or of one above it.

    Free is what the machine and each of these groups leave: others in a group above use up its limit, too.
    """
    meminfo, limits = memory_info(root), cgroup_limits(root)
    totals = [meminfo.get("MemTotal"), *(limit for limit, _ in limits)]
    left = [meminfo.get("MemAvailable"), *(max(0, limit - used) for limit, used in limits)]
    return Device("cpu", "cpu", _least(totals), _least(left))


def _least(numbers: Sequence[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)
