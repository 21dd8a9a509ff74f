"""What this process holds on a device now and at its peak: from /proc for the host, from torch for a GPU."""

import sys
from dataclasses import dataclass
from typing import Any

from palmette.memory import host


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device. `held_bytes` is what this process holds: resident on the host, reserved by torch on a GPU.

    `used_bytes` is what the allocator counts as in use, `other_bytes` what other processes hold; None where unknown.
    """

    device: str
    total_bytes: int
    free_bytes: int
    held_bytes: int
    used_bytes: int | None = None
    other_bytes: int | None = None


def read_device(device: str = "cpu") -> DeviceMemory:
    """Return a device's memory now."""
    return _read_cuda(device) if device.startswith("cuda") else _read_host()


def held_bytes(device: str = "cpu") -> int:
    """Return only what this process holds, at a tenth of the cost of `read_device`."""
    if device.startswith("cuda"):
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.memory_reserved(device))
    return host.resident_bytes()


def _read_host() -> DeviceMemory:
    resident, total = host.resident_bytes(), host.total_bytes()
    available = host.available_bytes()
    machine = host.machine_bytes()
    return DeviceMemory("cpu", total, host.free_bytes(), resident, None, max(0, machine - available - resident))


def _read_cuda(device: str) -> DeviceMemory:
    torch: Any = sys.modules["torch"]
    free, total = torch.cuda.mem_get_info(device)
    reserved = int(torch.cuda.memory_reserved(device))
    # What this process's allocator has reserved and does not use is free for it, too.
    used = int(torch.cuda.memory_allocated(device))
    return DeviceMemory(device, total, free + reserved - used, reserved, used, max(0, total - free - reserved))


class PeakBytes:
    """The peak of what this process holds on a device since the last `read_and_reset`.

    The host's peak is kept by the kernel once for the process: two readers in one process reset each other's.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.is_exact = device.startswith("cuda") or host.reset_peak()
        """Whether the kernel or torch keeps the peak; otherwise only what is held when it is read counts."""
        self.read_and_reset()

    def read_and_reset(self) -> int:
        """Return the peak and begin a new one."""
        if self._device.startswith("cuda"):
            torch: Any = sys.modules["torch"]
            reserved = int(torch.cuda.max_memory_reserved(self._device))
            torch.cuda.reset_peak_memory_stats(self._device)
            return reserved
        peak = host.peak_bytes() if self.is_exact else None
        host.reset_peak()
        return held_bytes(self._device) if peak is None else peak


def limit_device_memory(device: str, share: float) -> bool:
    """Let torch allocate no more than `share` of a CUDA device; return whether there was one to limit.

    On the CPU nothing is limited here: the plan and the guard keep to the share.
    """
    torch: Any = sys.modules.get("torch")
    if not device.startswith("cuda") or torch is None or not torch.cuda.is_available():
        return False
    torch.cuda.set_per_process_memory_fraction(share, torch.device(device))
    return True
