"""Turns the occupancy events of a run into the data of the page's pace plots."""

from collections.abc import Iterable
from typing import Any

from palmette.events import Event, Occupancy

ACTIVITIES = ("policy", "reward", "embedder", "strategy")


def occupancies(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return one entry for each process that searched, in order, as JSON values: `spent` has seconds by activity.

    `other` is the time that went into none of them: the rest of the loop, and the judge.
    """
    return [_entry(event) for event in events if isinstance(event, Occupancy)]


def _entry(event: Occupancy) -> dict[str, Any]:
    # In a damaged or foreign file the lists may differ in length: bins that are not complete are not drawn.
    count = min([len(event.ticks), len(event.rows), *map(len, event.spent.values())])
    spent = {name: list(event.spent[name][:count]) for name in ACTIVITIES if name in event.spent}
    taken = [sum(seconds[place] for seconds in spent.values()) for place in range(count)]
    # The last bin ends with the search, at a moment that is not recorded: its rest counts for nothing.
    spent["other"] = [max(0.0, round(event.bin_seconds - seconds, 4)) for seconds in taken[:-1]] + [0.0] * bool(count)
    return {
        "worker": event.worker,
        "bin": event.bin_seconds,
        "ticks": list(event.ticks[:count]),
        "rows": list(event.rows[:count]),
        "spent": spent,
    }
