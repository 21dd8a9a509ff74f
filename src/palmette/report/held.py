"""From a run's events to what its processes held, as the page draws it."""

from collections.abc import Iterable
from typing import Any

from palmette.events import Event, MemoryTimeline, OomRetry, Reclaimed

MOST_MARKS = 500


def held_story(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return one entry for each device of each process, in order, as JSON values; none for runs that metered nothing.

    Rungs and reclaims whose process left no timeline are left out.
    """
    last: dict[tuple[float, str], MemoryTimeline] = {}
    retries: dict[float, list[OomRetry]] = {}
    reclaimed: dict[float, list[Reclaimed]] = {}
    for event in events:
        if isinstance(event, MemoryTimeline):
            last[event.began, event.device] = event
        elif isinstance(event, OomRetry):
            retries.setdefault(event.began, []).append(event)
        elif isinstance(event, Reclaimed):
            reclaimed.setdefault(event.began, []).append(event)
    return [_entry(one, retries.get(one.began, []), reclaimed.get(one.began, [])) for one in last.values()]


def _entry(one: MemoryTimeline, retries: list[OomRetry], reclaimed: list[Reclaimed]) -> dict[str, Any]:
    # A damaged or foreign file may not agree with itself: what has no partner is not drawn.
    count = min(len(one.moments), len(one.held_bytes), len(one.places))
    known = range(len(one.phases))
    return {
        "device": one.device,
        "total": one.total_bytes,
        "limit": one.limit_bytes,
        "used": one.used_bytes,
        "moments": list(one.moments[:count]),
        "held": list(one.held_bytes[:count]),
        "places": [place if place in known else None for place in one.places[:count]],
        "phases": [
            {
                "name": phase.name,
                "times": phase.times,
                "seconds": phase.seconds,
                "peak": phase.peak_bytes,
                "planned": phase.planned_bytes,
            }
            for phase in one.phases
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
            {"moment": one.moment, "held": one.held_bytes, "after": one.after, "freed": sum(one.freed_bytes)}
            for one in reclaimed[:MOST_MARKS]
        ],
    }
