"""What a server really took of its device, beside what the plan says."""

from dataclasses import dataclass

from palmette.launch.command import ServerCommand
from palmette.planner.devices import detect_devices
from palmette.units import count_of, format_bytes

TOLERANCE = 0.05
"""How far a measured number may be from the plan, as a share of it, before that is said."""


@dataclass(frozen=True)
class Measured:
    """A started server. None stands for what could not be measured.

    `free_bytes` is what its device has left, `planned_free_bytes` what the plan leaves: free before less what the
    server is planned to hold.
    """

    role: str
    kv_tokens: int | None
    planned_kv_tokens: int
    needed_kv_tokens: int
    device: str
    free_bytes: int | None
    planned_free_bytes: int | None

    def __str__(self) -> str:
        parts = []
        if self.kv_tokens is not None:
            parts.append(f"KV {count_of(self.kv_tokens, 'token')} (planned {self.planned_kv_tokens:,})")
        if self.free_bytes is not None:
            planned = "" if self.planned_free_bytes is None else f" (planned {format_bytes(self.planned_free_bytes)})"
            parts.append(f"{format_bytes(self.free_bytes)} left on {self.device}{planned}")
        return ", ".join([*parts, *self.notices])

    @property
    def notices(self) -> list[str]:
        """What differs from the plan by more than it should."""
        found = []
        if self.kv_tokens is not None and self.kv_tokens < self.needed_kv_tokens:
            found.append(f"less KV than the {self.needed_kv_tokens:,} tokens that are needed")
        elif self.kv_tokens is not None and abs(self.kv_tokens / max(1, self.planned_kv_tokens) - 1) > TOLERANCE:
            found.append("not the KV that was planned: other processes took or freed memory while it started")
        if self.free_bytes is not None and self.planned_free_bytes is not None:
            missing = self.planned_free_bytes - self.free_bytes
            if missing > TOLERANCE * max(1, self.planned_free_bytes):
                found.append(f"{format_bytes(missing)} less than planned is left")
        return found


def compare(
    command: ServerCommand, before_bytes: int | None, after_bytes: int | None, kv_tokens: int | None
) -> Measured:
    """Return what is known of a server that has started, where so much was free before and after."""
    planned = None if before_bytes is None else max(0, before_bytes - command.planned_bytes)
    return Measured(
        role=command.role,
        kv_tokens=kv_tokens,
        planned_kv_tokens=command.planned_kv_tokens,
        needed_kv_tokens=command.needed_kv_tokens,
        device=command.device,
        free_bytes=after_bytes,
        planned_free_bytes=planned,
    )


def free_bytes(device: str) -> int | None:
    """Return what is free of a device now, of several the least; None where it is not there."""
    names = device.split(", ")
    found = [other.free_bytes for other in detect_devices() if other.name in names]
    known = [size for size in found if size is not None]
    return min(known) if len(known) == len(names) else None
