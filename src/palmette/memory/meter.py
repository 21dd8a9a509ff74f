"""What a process holds while it runs, sampled by a thread, and its peak in every phase."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import NamedTuple

from palmette.events import Event, MemoryTimeline, OomRetry, PhasePeak, Reclaimed
from palmette.memory.device import PeakBytes, held_bytes, read_device
from palmette.memory.heap import heap_in_use
from palmette.memory.reclaim import LEAST_BYTES, reclaim

MOST_SAMPLES = 512
SAMPLE_SECONDS = 0.1
_FIRST_TIMELINE_SECONDS = 10.0
"""The timeline is recorded after this many seconds, then after twice as many, and so on: a killed process loses at
most half of its timeline, and a run of a day records 14 of them."""


class HeldSample(NamedTuple):
    """Bytes held at a moment, in seconds since the meter began, and the number of the phase at that moment."""

    moment: float
    held_bytes: int
    phase: int | None


@dataclass
class HeldSamples:
    """Up to `most` samples. When there are more, of each two neighbors only the larger one is kept."""

    most: int = MOST_SAMPLES
    kept: list[HeldSample] = field(default_factory=list)
    _per_kept: int = 1
    """How many samples each kept one is the largest of."""
    _pending: HeldSample | None = None
    """The largest of the samples added since the last one was kept."""
    _added: int = 0
    """How many these are."""

    def add(self, sample: HeldSample) -> None:
        """Add a sample; its moment must not be before the last one's."""
        self._pending = sample if self._pending is None else _larger([self._pending, sample])
        self._added += 1
        if self._added < self._per_kept:
            return
        self.kept.append(self._pending)
        self._pending, self._added = None, 0
        if len(self.kept) > self.most:
            self.kept = [_larger(self.kept[start : start + 2]) for start in range(0, len(self.kept), 2)]
            self._per_kept *= 2

    def all(self) -> list[HeldSample]:
        """Return the kept samples and the largest of the pending ones."""
        return [*self.kept, *([] if self._pending is None else [self._pending])]


def _larger(samples: list[HeldSample]) -> HeldSample:
    return max(samples, key=lambda sample: sample.held_bytes)


@dataclass
class _OpenPhase:
    name: str
    begun: float
    peak_bytes: int


class Meter:
    """Samples what this process holds on a device inside a `with` block, and keeps the peak of each phase by its name.

    Events that come up outside `recording` wait for it.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        sample_seconds: float = SAMPLE_SECONDS,
        planned_bytes: Mapping[str, int] | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        self.device = device
        self._record: Callable[[Event], None] | None = None
        self._unrecorded: list[Event] = []
        self._sample_seconds = sample_seconds
        self.planned_bytes = dict(planned_bytes or {})
        self.limit_bytes = limit_bytes
        self._began = round(time.time(), 3)
        self._zero = time.monotonic()
        self._next_timeline = _FIRST_TIMELINE_SECONDS
        self._peak = PeakBytes(device)
        self._samples = HeldSamples()
        self._open: list[_OpenPhase] = []
        self._phase_numbers: dict[str, int] = {}
        self._closed: dict[str, PhasePeak] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="palmette-meter", daemon=True)

    def __enter__(self) -> "Meter":
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def recording(self, record: Callable[[Event], None]) -> Iterator[None]:
        """Call `record` with the events that waited, those of the block, and a timeline now and then and at the end."""
        self._record = record
        while self._unrecorded:
            record(self._unrecorded.pop(0))
        try:
            yield
        finally:
            self._record = None
            self._sample()
            record(self.timeline())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Keep the block's peak under a phase's name. Phases may be nested: a peak counts for the outer ones, too."""
        self._read_peak()
        begun = self._moment()
        with self._lock:
            self._phase_numbers.setdefault(name, len(self._phase_numbers))
            self._open.append(_OpenPhase(name, begun, 0))
        try:
            yield
        finally:
            self._read_peak()
            with self._lock:
                self._close(self._open.pop())
            if self._record is not None and self._moment() >= self._next_timeline:
                self._next_timeline *= 2
                self._record(self.timeline())

    def peaks(self) -> dict[str, int]:
        """Return the most bytes that were held in each phase that has ended."""
        with self._lock:
            return {name: peak.peak_bytes for name, peak in self._closed.items()}

    def reclaim(self, after: str, least_bytes: int = LEAST_BYTES) -> int:
        """Free unused memory after a phase; record and return the bytes that were freed."""
        freed = reclaim(lambda: held_bytes(self.device), least_bytes=least_bytes)
        self.record(Reclaimed(after, freed.tries, freed.held_bytes, round(freed.seconds, 4)))
        return freed.total_bytes

    def record(self, event: OomRetry | Reclaimed) -> None:
        """Record an event with the present moment, at once or as soon as `recording` begins."""
        event = replace(event, began=self._began, moment=round(self._moment(), 3))
        (self._record or self._unrecorded.append)(event)

    def timeline(self) -> MemoryTimeline:
        """Return the samples and the peaks of phases so far."""
        reading = read_device(self.device)
        with self._lock:
            samples = self._samples.all()
            open_now = [
                _with_earlier(self._closed.get(phase.name), phase, self._moment(), self.planned_bytes.get(phase.name))
                for phase in self._open
            ]
            peaks = {**self._closed, **{peak.name: peak for peak in open_now}}
        return MemoryTimeline(
            device=self.device,
            began=self._began,
            total_bytes=reading.total_bytes,
            moments=tuple(round(sample.moment, 3) for sample in samples),
            held_bytes=tuple(sample.held_bytes for sample in samples),
            places=tuple(sample.phase for sample in samples),
            phases=tuple(peaks[name] for name in self._phase_numbers),
            limit_bytes=self.limit_bytes,
            used_bytes=heap_in_use() if self.device == "cpu" else reading.used_bytes,
        )

    def _moment(self) -> float:
        return time.monotonic() - self._zero

    def _watch(self) -> None:
        while not self._stop.wait(self._sample_seconds):
            self._sample()

    def _sample(self) -> None:
        sample_bytes = held_bytes(self.device)
        with self._lock:
            for phase in self._open:
                phase.peak_bytes = max(phase.peak_bytes, sample_bytes)
            number = self._phase_numbers[self._open[-1].name] if self._open else None
            self._samples.add(HeldSample(self._moment(), sample_bytes, number))

    def _read_peak(self) -> None:
        """Count the device's peak since the last call in all open phases."""
        peak = self._peak.read_and_reset()
        with self._lock:
            for phase in self._open:
                phase.peak_bytes = max(phase.peak_bytes, peak)

    def _close(self, phase: _OpenPhase) -> None:
        planned = self.planned_bytes.get(phase.name)
        self._closed[phase.name] = _with_earlier(self._closed.get(phase.name), phase, self._moment(), planned)


def _with_earlier(before: PhasePeak | None, phase: _OpenPhase, now: float, planned_bytes: int | None) -> PhasePeak:
    """Return a phase's peak and seconds, together with those of the earlier times that it ran."""
    times, seconds, peak = (before.times, before.seconds, before.peak_bytes) if before else (0, 0.0, 0)
    spent = round(seconds + now - phase.begun, 3)
    return PhasePeak(phase.name, times + 1, spent, max(peak, phase.peak_bytes), planned_bytes)
