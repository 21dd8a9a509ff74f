"""Takes readings: of the host by /proc, of a GPU by torch."""

import sys
from typing import Any

from palmette.memory import host
from palmette.memory.reading import Reading


def read_device(device: str = "cpu") -> Reading:
    """Return what a device holds and has left now."""
    return _read_cuda(device) if device.startswith("cuda") else _read_host()


def held_bytes(device: str = "cpu") -> int:
    """Return this process's bytes alone: a tenth of the cost of a whole reading."""
    if device.startswith("cuda"):
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.memory_reserved(device))
    return host.resident_bytes()


def _read_host() -> Reading:
    held, total = host.resident_bytes(), host.total_bytes()
    available = host.available_bytes()
    machine = host.machine_bytes()
    return Reading("cpu", total, host.free_bytes(), held, None, max(0, machine - available - held))


def _read_cuda(device: str) -> Reading:
    torch: Any = sys.modules["torch"]
    free, total = torch.cuda.mem_get_info(device)
    reserved = int(torch.cuda.memory_reserved(device))
    # Free for this process is also what its own allocator has reserved and does not use.
    used = int(torch.cuda.memory_allocated(device))
    return Reading(device, total, free + reserved - used, reserved, used, max(0, total - free - reserved))
