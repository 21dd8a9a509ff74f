"""A plan's records: how many bytes each holder has on which device in which phase, and the basis of each number."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from palmette.planner.devices import Device

Basis = Literal["formula", "predicted", "measured", "declared"]
"""How a number was found: from model shapes, from the update on fake tensors, from a measured run, from a setting."""

LineKind = Literal[
    "weights", "kv", "gradients", "optimizer", "activations", "logits", "embedder", "reference", "runtime", "margin"
]

MARGIN_SHARE = 0.03
"""Added on a CPU to everything but caches, for what no formula counts: events in memory, thread stacks."""

LEARNING = ("reference", "values", "update")
"""The phases of training that do not generate. Before each of them caches are freed and the heap is trimmed."""

HEAP = "heap"
"""The holder of freed blocks."""

HEAP_TIMES = 2
"""How many times the bytes of its activations and logits the C heap may keep beside them in a phase that learns, where
freed blocks are not returned at once. Measured: 0.5 to 1.1; 2.2 in one update with gradient checkpointing, where the
margin covers the rest."""

HEAP_SHARE = 0.75
"""Of the logits that other phases have freed on a CPU, the share that the C heap does not return to the system: after
the first wave of SmolLM2-135M at width 16, 42 of 60 MiB. Small vocabularies leave next to nothing."""


@dataclass(frozen=True)
class Line:
    """Bytes that one holder, such as the policy's weights, has in a phase.

    `least_bytes` is the least that it works with, None where it needs all of them. `note` says how they are counted.
    """

    holder: str
    kind: LineKind
    bytes: int
    basis: Basis = "formula"
    least_bytes: int | None = None
    note: str = ""

    @property
    def needed_bytes(self) -> int:
        """The least bytes that the holder works with."""
        return self.bytes if self.least_bytes is None else self.least_bytes

    @property
    def is_short(self) -> bool:
        """Whether the holder has fewer bytes than it needs."""
        return self.bytes < self.needed_bytes


@dataclass(frozen=True)
class Phase:
    """What a device holds in one phase. It may hold `limit_bytes`; None where the device's size is unknown."""

    name: str
    lines: tuple[Line, ...]
    share: float
    limit_bytes: int | None

    @property
    def bytes(self) -> int:
        """Bytes of all lines."""
        return total(self.lines)

    @property
    def needed_bytes(self) -> int:
        """The least bytes that the phase works with."""
        return sum(line.needed_bytes for line in self.lines)

    @property
    def demanded_bytes(self) -> int:
        """Bytes of all lines, or the bytes needed if these are more."""
        return max(self.bytes, self.needed_bytes)

    @property
    def fits(self) -> bool:
        """Whether the demanded bytes are within the limit and no holder has fewer bytes than it needs."""
        return self.limit_bytes is None or (not self.short_lines and self.demanded_bytes <= self.limit_bytes)

    @property
    def short_lines(self) -> tuple[Line, ...]:
        """The lines of holders that have fewer bytes than they need."""
        return tuple(line for line in self.lines if line.is_short)

    @property
    def largest(self) -> Line:
        """The line with the most bytes."""
        return max(self.lines, key=lambda line: line.bytes)


@dataclass(frozen=True)
class DevicePlan:
    """One device in all phases, with the roles that run on it."""

    device: Device
    roles: tuple[str, ...]
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        """The phase that holds the most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def tightest(self) -> Phase:
        """The phase whose needed bytes exceed its limit by the most, or come closest to it."""
        return max(self.phases, key=lambda phase: phase.needed_bytes - (phase.limit_bytes or 0))


@dataclass(frozen=True)
class Server:
    """How one model is served. `commands`, `fractions` and `kv_tokens` have an entry for each serving engine."""

    role: str
    device: str
    order: int
    """Its place among the servers, which have to be started in this order."""
    commands: dict[str, str]
    fractions: dict[str, float]
    kv_tokens: dict[str, int]
    needed_tokens: int = 0
    """The least KV tokens that it works with."""


@dataclass(frozen=True)
class AppliedRule:
    """A rule that applied to this plan, with what it decided here."""

    id: str
    decision: str
    reason: str
    source: str


@dataclass(frozen=True)
class BudgetFault:
    """A KV budget that cannot hold prompts of the planned length, each with a first step; `needed_bytes` can."""

    setting: str
    needed_bytes: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """What every device holds in every phase, the servers to start, the rules that applied, and remarks."""

    mode: str
    devices: tuple[DevicePlan, ...]
    servers: tuple[Server, ...] = ()
    rules: tuple[AppliedRule, ...] = ()
    remarks: tuple[str, ...] = ()
    budget_faults: tuple[BudgetFault, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every phase fits its device and every KV budget is large enough."""
        return not self.budget_faults and not self.misfits

    @property
    def misfits(self) -> list[tuple[DevicePlan, Phase]]:
        """The phases that do not fit their device, the one that exceeds its limit the most first."""
        found = [(device, phase) for device in self.devices for phase in device.phases if not phase.fits]
        return sorted(found, key=lambda pair: (pair[1].limit_bytes or 0) - pair[1].demanded_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that any device holds in any phase."""
        return max((device.peak.bytes for device in self.devices), default=0)


def total(lines: Iterable[Line]) -> int:
    """Return the bytes of some lines together."""
    return sum(line.bytes for line in lines)


@dataclass
class DeviceAllocation:
    """What is allocated on one device while a plan is made.

    `resident` is there in every phase of a search, `by_phase` only in the phase it is listed under, and
    `update_resident` is what stays of `resident` during an update.
    """

    device: Device
    resident: list[Line] = field(default_factory=list)
    by_phase: dict[str, list[Line]] = field(default_factory=dict)
    update_resident: list[Line] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is allocated here."""
        return not (self.resident or self.by_phase or self.update_resident)

    def largest_phase_bytes(self) -> int:
        """Return the most bytes that one phase of a search adds to what is resident."""
        sizes = [total(lines) for name, lines in self.by_phase.items() if name not in LEARNING]
        return max(sizes, default=0)

    def left_bytes(self, share: float) -> int | None:
        """Return what this share of the device leaves for KV caches; None on a device of unknown size.

        Taken off are caches allocated before, everything else with its margin, and the largest phase.
        """
        limit = self.device.limit_bytes(share)
        if limit is None:
            return None
        caches = total(line for line in self.resident if line.kind == "kv")
        counted = total(self.resident) - caches
        phases = [total(lines) + self.margin_bytes(counted, name) for name, lines in self.by_phase.items()]
        return max(0, limit - caches - counted - max(phases, default=self.margin_bytes(counted, "")))

    def margin_bytes(self, resident_bytes: int, phase: str) -> int:
        """Return the margin of a phase beside so many resident bytes; 0 on a GPU, whose share leaves room for it."""
        if self.device.kind == "cuda":
            return 0
        kept = 0 if phase in LEARNING else HEAP_SHARE * self._other_logits(phase)
        return math.ceil((resident_bytes + total(self.by_phase.get(phase, []))) * MARGIN_SHARE + kept)

    def _other_logits(self, phase: str) -> int:
        """Return the logits of the other phases of a search."""
        others = [lines for name, lines in self.by_phase.items() if name not in (*LEARNING, phase)]
        return total(line for lines in others for line in lines if line.kind == "logits")


class Allocations(dict[Device, DeviceAllocation]):
    """What is allocated on each device; a device that was not asked for before has an empty allocation."""

    def __missing__(self, device: Device) -> DeviceAllocation:
        self[device] = DeviceAllocation(device)
        return self[device]
