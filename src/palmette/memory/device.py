"""What this process holds of a device now and at its peak: of the host by /proc, of a GPU by torch."""

import sys
from dataclasses import dataclass
from typing import Any

from palmette.memory import host


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device. `held_bytes` are this process's: resident on the host, reserved by torch on a GPU.

    `used_bytes` are the allocator's own count of what is in use, `other_bytes` what other processes hold; None where
    nobody tells.
    """

    device: str
    total_bytes: int
    free_bytes: int
    held_bytes: int
    used_bytes: int | None = None
    other_bytes: int | None = None


def read_device(device: str = "cpu") -> DeviceMemory:
    """Return what a device holds and has left now."""
    return _read_cuda(device) if device.startswith("cuda") else _read_host()


def held_bytes(device: str = "cpu") -> int:
    """Return this process's bytes alone: a tenth of the cost of a whole reading."""
    if device.startswith("cuda"):
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.memory_reserved(device))
    return host.resident_bytes()


def _read_host() -> DeviceMemory:
    held, total = host.resident_bytes(), host.total_bytes()
    available = host.available_bytes()
    machine = host.machine_bytes()
    return DeviceMemory("cpu", total, host.free_bytes(), held, None, max(0, machine - available - held))


def _read_cuda(device: str) -> DeviceMemory:
    torch: Any = sys.modules["torch"]
    free, total = torch.cuda.mem_get_info(device)
    reserved = int(torch.cuda.memory_reserved(device))
    # Free for this process is also what its own allocator has reserved and does not use.
    used = int(torch.cuda.memory_allocated(device))
    return DeviceMemory(device, total, free + reserved - used, reserved, used, max(0, total - free - reserved))


class PeakBytes:
    """The peak of a device since the last `take`. Between two readings nothing is missed where the device keeps a mark.

    The host's mark is the process's own: two of these in one process see parts of each other's peaks.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.is_exact = device.startswith("cuda") or host.reset_peak()
        """Whether the device keeps a mark; otherwise a peak is what was sampled."""
        self.take()

    def take(self) -> int:
        """Return the peak and begin a new one."""
        if self._device.startswith("cuda"):
            torch: Any = sys.modules["torch"]
            peak = int(torch.cuda.max_memory_reserved(self._device))
            torch.cuda.reset_peak_memory_stats(self._device)
            return peak
        marked = host.peak_bytes() if self.is_exact else None
        host.reset_peak()
        return held_bytes(self._device) if marked is None else marked


def limit_device_memory(device: str, share: float) -> bool:
    """Let torch allocate no more than `share` of a CUDA device; tell whether there was one to limit.

    Nothing is limited on the CPU: there the plan and the guard keep the share.
    """
    torch: Any = sys.modules.get("torch")
    if not device.startswith("cuda") or torch is None or not torch.cuda.is_available():
        return False
    torch.cuda.set_per_process_memory_fraction(share, torch.device(device))
    return True
