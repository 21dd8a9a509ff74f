"""The most that a run held, by its own events."""

from pathlib import Path

from palmette.event_log import read_events
from palmette.events import MemoryTimeline


def peak_of_run(folder: Path) -> int:
    """Return the largest peak of a run's phases.

    The process's own mark (`VmHWM`, `ru_maxrss`) tells nothing after a run: its meter resets it at every phase.
    """
    timelines = [event for event in read_events(folder) if isinstance(event, MemoryTimeline)]
    return max(phase.peak_bytes for timeline in timelines for phase in timeline.phases)
