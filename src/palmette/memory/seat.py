"""What is gathered for one device on the way to a plan."""

from dataclasses import dataclass, field

from palmette.memory.devices import Device
from palmette.memory.lines import Line, total

MARGIN_SHARE = 0.03
"""Kept beside what is counted on a CPU, caches apart: the heap's gaps, events in memory, the stacks of threads."""


@dataclass
class Seat:
    """Lines that stay, lines of single phases, and lines that an update finds there."""

    device: Device
    resident: list[Line] = field(default_factory=list)
    passing: dict[str, list[Line]] = field(default_factory=dict)
    update_resident: list[Line] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing sits here."""
        return not (self.resident or self.passing or self.update_resident)

    def passing_bytes(self) -> int:
        """Return the most that one searching phase adds."""
        sizes = [total(lines) for name, lines in self.passing.items() if name != "update"]
        return max(sizes, default=0)

    def left_bytes(self, share: float) -> int | None:
        """Return what is left for caches after all else with its margin; None on a device of unknown size."""
        limit = self.device.limit_bytes(share)
        if limit is None:
            return None
        counted = total(line for line in self.resident if line.kind != "kv") + self.passing_bytes()
        caches = total(line for line in self.resident if line.kind == "kv")
        return max(0, limit - caches - counted - self.margin_bytes(counted))

    def margin_bytes(self, counted_bytes: int) -> int:
        """Return what is kept beside so many counted bytes. A GPU's margin is the rest of its share."""
        return -int(-counted_bytes * MARGIN_SHARE) if self.device.kind == "cpu" else 0
