"""Events of memory: what was held over time, what did not fit, what was freed."""

from dataclasses import dataclass
from typing import ClassVar

from palmette.events.values import Amount, Count, Signed


@dataclass(frozen=True)
class OomRetry:
    """An out-of-memory retry: a piece of `tried` units failed, the next ones have at most `limit` units.

    `limit` None means that all sizes are tried again, because caches were freed first (`spared`); with `limit` None and
    not `spared` nothing was left to try, and the work failed. `moment` is the time in seconds since the meter of the
    process started, which was at `began` (seconds since 1970).
    """

    kind: ClassVar[str] = "oom_retry"
    guard: str
    unit: str
    tried: Count
    limit: Count | None
    reason: str
    freed_bytes: Signed
    free_bytes_before: Count
    free_bytes_after: Count
    held_bytes: Count
    spared: bool = False
    began: Amount = 0.0
    moment: Amount = 0.0
    worker: str = ""


@dataclass(frozen=True)
class Reclaimed:
    """Unused memory was freed, between two phases or after a piece that did not fit (`after`).

    `freed_bytes` is what each attempt really freed, `held_bytes` what the process held afterwards. `began` and `moment`
    as in OomRetry.
    """

    kind: ClassVar[str] = "reclaimed"
    after: str
    freed_bytes: tuple[Signed, ...]
    held_bytes: Count
    seconds: Amount
    began: Amount = 0.0
    moment: Amount = 0.0
    worker: str = ""


@dataclass(frozen=True)
class PhasePeak:
    """All runs of one phase: how many, seconds in total, the most bytes held in any, the bytes planned."""

    name: str
    times: Count
    seconds: Amount
    peak_bytes: Count
    planned_bytes: Count | None = None


@dataclass(frozen=True)
class MemoryTimeline:
    """The memory that one process held on a device over time.

    A later event with the same `began`, `device` and `worker` replaces this one.

    `moments` (seconds since `began`), `held_bytes` and `places` have one entry for each sample; a place is an index
    into `phases`, None outside of all phases. `used_bytes` is the allocator's own count at the end, None if it has
    none.
    """

    kind: ClassVar[str] = "memory_timeline"
    device: str
    began: Amount
    total_bytes: Count
    moments: tuple[Amount, ...]
    held_bytes: tuple[Count, ...]
    places: tuple[Count | None, ...]
    phases: tuple[PhasePeak, ...]
    limit_bytes: Count | None = None
    used_bytes: Count | None = None
    worker: str = ""
