"""The most that was held since one last asked, by the kernel's own mark where it can be reset."""

import sys
from typing import Any

from palmette.memory import host
from palmette.memory.observe import held_bytes


class PeakMark:
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
