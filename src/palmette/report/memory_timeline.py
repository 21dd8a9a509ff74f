"""Turns the memory events of a run into the data of the page's memory plots."""

from collections.abc import Iterable
from typing import Any

from palmette.events import Event, MemoryTimeline, OomRetry, Reclaimed

MOST_MARKS = 500
"""Out-of-memory retries, and reclaims, that one plot shows at most."""


def memory_timelines(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return one entry for each device of each process, in order, as JSON values; none if the run was not metered.

    Out-of-memory retries and reclaims of a process without a timeline are left out.
    """
    last: dict[tuple[str, float, str], MemoryTimeline] = {}
    retries: dict[tuple[str, float], list[OomRetry]] = {}
    reclaimed: dict[tuple[str, float], list[Reclaimed]] = {}
    for event in events:
        if isinstance(event, MemoryTimeline):
            last[event.worker, event.began, event.device] = event
        elif isinstance(event, OomRetry):
            retries.setdefault((event.worker, event.began), []).append(event)
        elif isinstance(event, Reclaimed):
            reclaimed.setdefault((event.worker, event.began), []).append(event)
    return [
        _entry(timeline, retries.get((worker, began), []), reclaimed.get((worker, began), []))
        for (worker, began, _), timeline in last.items()
    ]


def _entry(timeline: MemoryTimeline, retries: list[OomRetry], reclaimed: list[Reclaimed]) -> dict[str, Any]:
    # In a damaged or foreign file the lists may differ in length: samples that are not complete are not drawn.
    count = min(len(timeline.moments), len(timeline.held_bytes), len(timeline.places))
    known = range(len(timeline.phases))
    return {
        "device": timeline.device,
        "worker": timeline.worker,
        "total": timeline.total_bytes,
        "limit": timeline.limit_bytes,
        "used": timeline.used_bytes,
        "moments": list(timeline.moments[:count]),
        "held": list(timeline.held_bytes[:count]),
        "places": [place if place in known else None for place in timeline.places[:count]],
        "phases": [
            {
                "name": phase.name,
                "times": phase.times,
                "seconds": phase.seconds,
                "peak": phase.peak_bytes,
                "planned": phase.planned_bytes,
            }
            for phase in timeline.phases
        ],
        "retries": [
            {
                "moment": retry.moment,
                "held": retry.held_bytes,
                "free": retry.free_bytes_after,
                "guard": retry.guard,
                "unit": retry.unit,
                "tried": retry.tried,
                "limit": retry.limit,
                "spared": retry.spared,
                "reason": retry.reason,
            }
            for retry in retries[:MOST_MARKS]
        ],
        "retries_left_out": max(0, len(retries) - MOST_MARKS),
        "reclaimed": [
            {"moment": event.moment, "held": event.held_bytes, "after": event.after, "freed": sum(event.freed_bytes)}
            for event in reclaimed[:MOST_MARKS]
        ],
    }
