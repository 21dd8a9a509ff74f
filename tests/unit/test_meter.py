"""The meter on this very process: what it reads, keeps and records; and when freeing memory stops."""

import mmap
import sys

import pytest

from palmette.events import Event, MemoryTimeline, Reclaimed
from palmette.memory import host
from palmette.memory.device import read_device
from palmette.memory.heap import heap_in_use
from palmette.memory.meter import HeldSample, HeldSamples, Meter
from palmette.memory.reclaim import reclaim

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_samples_stay_bounded_and_keep_their_peaks() -> None:
    samples = HeldSamples(most=8)
    for number in range(1000):
        samples.add(HeldSample(float(number), 7 if number in (123, 999) else number % 3, None))
    kept = samples.all()
    assert len(kept) <= 9
    assert [sample.moment for sample in kept] == sorted(sample.moment for sample in kept)
    assert [sample.moment for sample in kept if sample.held_bytes == 7] == [123.0, 999.0]


def test_a_phase_inside_another_raises_the_peak_of_both_and_a_later_one_does_not_see_it() -> None:
    recorded: list[Event] = []
    with Meter(sample_seconds=3600) as meter, meter.recording(recorded.append):
        # Freed before any sample: only the kernel's own peak shows it.
        with meter.phase("outer"), meter.phase("inner"), mmap.mmap(-1, 64 * MIB) as block:
            block.write(bytes(64) * MIB)
        with meter.phase("after"):
            pass
        with meter.phase("after"):
            pass
    timeline = recorded[-1]
    assert isinstance(timeline, MemoryTimeline)
    peaks = {phase.name: phase.peak_bytes for phase in timeline.phases}
    assert peaks["outer"] == peaks["inner"] or not host.reset_peak()
    assert peaks["inner"] >= peaks["after"] + 48 * MIB or not host.reset_peak()
    assert [(phase.name, phase.times) for phase in timeline.phases] == [("outer", 1), ("inner", 1), ("after", 2)]


def test_events_before_recording_begins_are_recorded_first() -> None:
    recorded: list[Event] = []
    with Meter(sample_seconds=3600) as meter:
        freed = meter.reclaim("load", 1)
        with meter.recording(recorded.append):
            pass
    first, last = recorded
    assert isinstance(first, Reclaimed) and isinstance(last, MemoryTimeline)
    assert sum(first.freed_bytes) == freed
    assert first.began == last.began


@pytest.mark.parametrize(
    ("levels", "tries"),
    [
        ([100, 95], (5,)),  # less than the least: once
        ([100, 80, 75], (20, 5)),
        ([100, 80, 60, 40, 20], (20, 20, 20)),  # three tries at the most
        ([100, 110], (-10,)),  # something else grew
    ],
)
def test_reclaiming_stops_when_a_try_frees_too_little(levels: list[int], tries: tuple[int, ...]) -> None:
    left = list(levels)
    freed = reclaim(lambda: left[0], lambda: void(left.pop(0)), least_bytes=10)
    assert freed.tries == tries
    assert freed.total_bytes == sum(tries)
    assert freed.held_bytes == levels[len(tries)]


def void(value: int) -> None:
    """Discard a value."""


@linux
def test_a_reading_agrees_with_itself() -> None:
    before = read_device()
    block = bytearray(b"x" * (32 * MIB))
    after = read_device()
    assert after.held_bytes >= before.held_bytes + 24 * MIB
    assert 0 < after.free_bytes <= after.total_bytes
    assert (host.peak_bytes() or 0) >= after.held_bytes - MIB
    in_use = heap_in_use()
    assert in_use is None or in_use >= len(block)
