"""What a process holds while it runs, and its peak in every phase, sampled by a thread of its own."""

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


class HeldSample(NamedTuple):
    """Bytes held at a moment, in seconds, and the place it fell into."""

    moment: float
    held_bytes: int
    place: int | None


@dataclass
class HeldSamples:
    """Up to `most` samples. When there are more, each two neighbors leave the larger one."""

    most: int = MOST_SAMPLES
    kept: list[HeldSample] = field(default_factory=list)
    _together: int = 1
    """HeldSamples that stand behind one that is kept."""
    _waiting: list[HeldSample] = field(default_factory=list)

    def add(self, sample: HeldSample) -> None:
        """Take one more; moments must not go back."""
        self._waiting.append(sample)
        if len(self._waiting) < self._together:
            return
        self.kept.append(_larger(self._waiting))
        self._waiting = []
        if len(self.kept) > self.most:
            self.kept = [_larger(self.kept[place : place + 2]) for place in range(0, len(self.kept), 2)]
            self._together *= 2

    def all(self) -> list[HeldSample]:
        """Return what is kept, the newest included."""
        return [*self.kept, *([_larger(self._waiting)] if self._waiting else [])]


def _larger(samples: list[HeldSample]) -> HeldSample:
    return max(samples, key=lambda sample: sample.held_bytes)


SAMPLE_SECONDS = 0.1
_FIRST_TOLD = 10.0
"""Seconds after which the timeline is written for the first time; then each time that doubles. A killed process loses
half of its timeline at the most, and a run of a day writes 14 of them."""


@dataclass
class _Open:
    name: str
    begun: float
    peak_bytes: int


class Meter:
    """HeldSamples what a device holds from `with` to its end, and keeps the peak of each phase by its name.

    What it has to tell waits until something records.
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
        self._untold: list[Event] = []
        self._sample_seconds = sample_seconds
        self.planned_bytes = dict(planned_bytes or {})
        self.limit_bytes = limit_bytes
        self._began = round(time.time(), 3)
        self._zero = time.monotonic()
        self._told = _FIRST_TOLD
        self._mark = PeakBytes(device)
        self._samples = HeldSamples()
        self._open: list[_Open] = []
        self._places: dict[str, int] = {}
        self._done: dict[str, PhasePeak] = {}
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
        """Let `record` hear the events of the block: a timeline now and then, one at the end, and what is told."""
        self._record = record
        while self._untold:
            record(self._untold.pop(0))
        try:
            yield
        finally:
            self._record = None
            self._sample()
            record(self.timeline())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is held inside the block to a phase. One may lie in another: a peak counts for all around it."""
        self._fold()
        begun = self._moment()
        with self._lock:
            self._places.setdefault(name, len(self._places))
            self._open.append(_Open(name, begun, 0))
        try:
            yield
        finally:
            self._fold()
            with self._lock:
                self._close(self._open.pop())
            if self._record is not None and self._moment() >= self._told:
                self._told *= 2
                self._record(self.timeline())

    def reclaim(self, after: str, least_bytes: int = LEAST_BYTES) -> int:
        """Give memory back after a phase; record and return what was really freed."""
        freed = reclaim(lambda: held_bytes(self.device), least_bytes=least_bytes)
        self.tell(Reclaimed(after, freed.tries, freed.held_bytes, round(freed.seconds, 4)))
        return freed.total_bytes

    def tell(self, event: OomRetry | Reclaimed) -> None:
        """Record an event with the moment at which it happened, now or as soon as something records."""
        event = replace(event, began=self._began, moment=round(self._moment(), 3))
        (self._record or self._untold.append)(event)

    def timeline(self) -> MemoryTimeline:
        """Return what was held so far."""
        reading = read_device(self.device)
        with self._lock:
            samples = self._samples.all()
            open_now = [
                _merged(self._done.get(phase.name), phase, self._moment(), self.planned_bytes.get(phase.name))
                for phase in self._open
            ]
            peaks = {**self._done, **{peak.name: peak for peak in open_now}}
        return MemoryTimeline(
            device=self.device,
            began=self._began,
            total_bytes=reading.total_bytes,
            moments=tuple(round(sample.moment, 3) for sample in samples),
            held_bytes=tuple(sample.held_bytes for sample in samples),
            places=tuple(sample.place for sample in samples),
            phases=tuple(peaks[name] for name in self._places),
            limit_bytes=self.limit_bytes,
            used_bytes=heap_in_use() if self.device == "cpu" else reading.used_bytes,
        )

    def _moment(self) -> float:
        return time.monotonic() - self._zero

    def _watch(self) -> None:
        while not self._stop.wait(self._sample_seconds):
            self._sample()

    def _sample(self) -> None:
        held = held_bytes(self.device)
        with self._lock:
            for phase in self._open:
                phase.peak_bytes = max(phase.peak_bytes, held)
            place = self._places[self._open[-1].name] if self._open else None
            self._samples.add(HeldSample(self._moment(), held, place))

    def _fold(self) -> None:
        """Take the device's own peak into all open phases."""
        peak = self._mark.take()
        with self._lock:
            for phase in self._open:
                phase.peak_bytes = max(phase.peak_bytes, peak)

    def _close(self, phase: _Open) -> None:
        planned = self.planned_bytes.get(phase.name)
        self._done[phase.name] = _merged(self._done.get(phase.name), phase, self._moment(), planned)


def _merged(before: PhasePeak | None, phase: _Open, now: float, planned_bytes: int | None) -> PhasePeak:
    times, seconds, peak = (before.times, before.seconds, before.peak_bytes) if before else (0, 0.0, 0)
    spent = round(seconds + now - phase.begun, 3)
    return PhasePeak(phase.name, times + 1, spent, max(peak, phase.peak_bytes), planned_bytes)
