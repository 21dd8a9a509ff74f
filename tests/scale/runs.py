"""Searches by a policy without a model, plain and on workers, and what they recorded."""

from pathlib import Path
from typing import Any

from palmette import Searcher
from palmette.event_log import read_events
from palmette.events import QuestionFinished, QuestionStarted, WaveDone
from palmette.search.replay import replay

FLAGS = {
    "policy.model": "tests.scale.held_policy:HeldPolicy", "reward.model": None, "task.name": "ladder",
    "task.questions": 8, "search.width": 3, "search.depth": 4, "search.step_tokens": 12, "search.total_tokens": 30,
    "search.questions_in_flight": 2,
}  # fmt: skip


def searcher(address: str | None = None, **scale: Any) -> Searcher:
    """Return a searcher in this process, or with an address one on workers there."""
    told = {"address": address, "workers": 2, "worker_cpus": 0.25, **scale} if address else {}
    return Searcher(settings={**FLAGS, **{f"scale.{key}": value for key, value in told.items()}})


def trees(folder: Path) -> dict[str, list[Any]]:
    """Return the events of the last attempt at each question, in the order in which its tree grew."""
    found: dict[str, list[Any]] = {}
    for event in read_events(folder):
        if isinstance(event, QuestionStarted):
            found[event.question] = []
        if isinstance(event, QuestionStarted | WaveDone | QuestionFinished):
            found[event.question].append(event)
    assert all(replayed.finished for replayed in replay(read_events(folder)).values())
    return found


def finished(folder: Path) -> list[str]:
    """Return the finished questions in the order of their ends; a question that was searched twice is there twice."""
    return [event.question for event in read_events(folder) if isinstance(event, QuestionFinished)]
