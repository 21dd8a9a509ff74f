"""A plan's parts: who holds how many bytes of which device in which phase, and how each number is known."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from palmette.planner.devices import Device

Known = Literal["formula", "predicted", "measured", "declared"]
"""Counted from shapes; from the real update under fake tensors; from a run; or given by a setting."""

Kind = Literal[
    "weights", "kv", "gradients", "optimizer", "activations", "logits", "embedder", "reference", "runtime", "margin"
]


@dataclass(frozen=True)
class Line:
    """Bytes that one holder has in a phase.

    `least_bytes` is what it cannot do without; None where that is all of it. `note` says what the bytes are made of.
    """

    holder: str
    kind: Kind
    bytes: int
    known: Known = "formula"
    least_bytes: int | None = None
    note: str = ""

    @property
    def needed_bytes(self) -> int:
        """What the holder cannot do without."""
        return self.bytes if self.least_bytes is None else self.least_bytes

    @property
    def is_short(self) -> bool:
        """Tell whether the holder has less than what it cannot do without."""
        return self.bytes < self.needed_bytes


@dataclass(frozen=True)
class Phase:
    """What a device holds while one thing is done; `limit_bytes` is what the phase may hold, None for unknown."""

    name: str
    lines: tuple[Line, ...]
    share: float
    limit_bytes: int | None

    @property
    def bytes(self) -> int:
        """All lines together."""
        return sum(line.bytes for line in self.lines)

    @property
    def needed_bytes(self) -> int:
        """What the phase cannot do without."""
        return sum(line.needed_bytes for line in self.lines)

    @property
    def fits(self) -> bool:
        """Tell whether what is held and what is needed are within the limit, and no holder has less than it needs."""
        return self.limit_bytes is None or (not self.short and self.demanded_bytes <= self.limit_bytes)

    @property
    def demanded_bytes(self) -> int:
        """What is held or what is needed, whichever is more."""
        return max(self.bytes, self.needed_bytes)

    @property
    def short(self) -> tuple[Line, ...]:
        """The holders that have less than what they cannot do without."""
        return tuple(line for line in self.lines if line.is_short)

    @property
    def largest(self) -> Line:
        """The line with the most bytes."""
        return max(self.lines, key=lambda line: line.bytes)


@dataclass(frozen=True)
class DevicePlan:
    """One device through all phases, with the roles that sit on it."""

    device: Device
    roles: tuple[str, ...]
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        """The phase that holds the most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def tightest(self) -> Phase:
        """The phase that exceeds its limit by the most, or comes closest to it."""
        return max(self.phases, key=lambda phase: phase.needed_bytes - (phase.limit_bytes or 0))


@dataclass(frozen=True)
class Server:
    """How one model is served: a start command for each serving engine, in the order that they are started."""

    role: str
    device: str
    order: int
    commands: dict[str, str]
    fractions: dict[str, float]
    kv_tokens: dict[str, int]
    needed_tokens: int = 0
    """KV tokens that it cannot do without."""


@dataclass(frozen=True)
class Fired:
    """A rule that shaped this plan, with what it decided here."""

    id: str
    decision: str
    reason: str
    source: str


@dataclass(frozen=True)
class Plan:
    """Devices by phases by lines, the servers to start, the rules that fired, and remarks."""

    mode: str
    devices: tuple[DevicePlan, ...]
    servers: tuple[Server, ...] = ()
    rules: tuple[Fired, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Tell whether every phase fits its device."""
        return all(phase.fits for device in self.devices for phase in device.phases)

    @property
    def misfits(self) -> list[tuple[DevicePlan, Phase]]:
        """The phases that do not fit, the worst first."""
        found = [(device, phase) for device in self.devices for phase in device.phases if not phase.fits]
        return sorted(found, key=lambda pair: (pair[1].limit_bytes or 0) - pair[1].demanded_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most that any device holds in any phase."""
        return max((device.peak.bytes for device in self.devices), default=0)


def total(lines: Iterable[Line]) -> int:
    """Return the bytes of some lines."""
    return sum(line.bytes for line in lines)


MARGIN_SHARE = 0.03
"""Kept beside what is counted on a CPU, caches apart: events in memory, stacks of threads, what no formula counts."""

HEAP_SHARE = 0.75
"""Of the logits that other phases have freed on a CPU, the part that the heap does not give back: after the first wave
of SmolLM2-135M at width 16, 42 of 60 MiB. Small vocabularies leave nothing to speak of."""


@dataclass
class DeviceAllocation:
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
