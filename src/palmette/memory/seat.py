"""What is gathered for one device on the way to a plan."""

import math
from dataclasses import dataclass, field

from palmette.memory.devices import Device
from palmette.memory.lines import Line, total

MARGIN_SHARE = 0.03
"""Kept beside what is counted on a CPU, caches apart: events in memory, stacks of threads, what no formula counts."""

HEAP_SHARE = 0.75
"""Of the logits that other phases have freed on a CPU, the part that the heap does not give back: after the first wave
of SmolLM2-135M at width 16, 42 of 60 MiB. Small vocabularies leave nothing to speak of."""


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
        caches = total(line for line in self.resident if line.kind == "kv")
        counted = total(self.resident) - caches
        phases = [total(lines) + self.margin_bytes(counted, name) for name, lines in self.passing.items()]
        return max(0, limit - caches - counted - max(phases, default=self.margin_bytes(counted, "")))

    def margin_bytes(self, stays_bytes: int, phase: str) -> int:
        """Return what is kept beside so many bytes that stay and those of a phase. A GPU's is outside its share."""
        if self.device.kind == "cuda":
            return 0
        # Before an update the heap is given back, and what an update frees goes back at once.
        others = [lines for name, lines in self.passing.items() if "update" not in (name, phase) and name != phase]
        freed = [line for lines in others for line in lines]
        kept = HEAP_SHARE * total(line for line in freed if line.kind == "logits")
        return math.ceil((stays_bytes + total(self.passing.get(phase, []))) * MARGIN_SHARE + kept)
