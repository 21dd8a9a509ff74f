"""Turns the events of a run's workers into the data of the page's table."""

from collections.abc import Iterable
from typing import Any

from palmette.events import Event, WorkerEnded

MOST_LINES = 1000
"""Ends of workers that the table shows."""


def workers_ended(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return one entry for each life of each worker, in the order of their ends, as JSON values."""
    ended = [event for event in events if isinstance(event, WorkerEnded)]
    return [
        {
            "name": event.worker,
            "node": event.node,
            "questions": event.questions,
            "tokens": event.tokens,
            "seconds": event.seconds,
            "peak": event.peak_bytes,
            "lost": event.lost,
        }
        for event in ended[:MOST_LINES]
    ]
