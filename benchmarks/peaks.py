"""The most that a run held, by its own events, and that this process held."""

from pathlib import Path

from palmette.event_log import read_events
from palmette.events import MemoryTimeline, PhasePeak
from palmette.memory import host


def peak_of_run(folder: Path) -> int:
    """Return the largest peak of a run's phases.

    The process's own mark tells nothing after a run: its meter resets it at every phase.
    """
    timelines = [event for event in read_events(folder) if isinstance(event, MemoryTimeline)]
    return max(phase.peak_bytes for timeline in timelines for phase in timeline.phases)


def peak_of_process() -> int:
    """Return the most that this process held since it began.

    Not `ru_maxrss`: that begins with the peak of the process which started this one.
    """
    peak = host.peak_bytes()
    assert peak is not None, "needs Linux: /proc/self/status"
    return peak


def phases_of_run(folder: Path) -> tuple[PhasePeak, ...]:
    """Return the phases of a run's last process, each with the most that was held and what was planned."""
    return [event for event in read_events(folder) if isinstance(event, MemoryTimeline)][-1].phases
