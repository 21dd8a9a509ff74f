"""Reads runs and compares them: the data of each run, rows with seeds pooled, best-of-N for every smaller N."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from palmette.config import recorded_config
from palmette.event_log import FILE_NAME, read_events
from palmette.report.memory_timeline import memory_timelines
from palmette.report.occupancy_data import occupancies
from palmette.report.paired import Finished
from palmette.report.question_data import question_data
from palmette.report.rows import Curves, Row, comparison_key, pooled_rows
from palmette.report.table import accuracy_values, summary_values
from palmette.report.worker_data import workers_ended
from palmette.search.curve import Point, curve, doublings
from palmette.search.rejudge import Rejudge
from palmette.search.replay import Replay, replay
from palmette.search.summary import Summary, summarize
from palmette.settings import Config

MOST_QUESTIONS = 200
"""Questions of a run whose trees are put on the page."""
MOST_BYTES = 20_000_000
"""JSON bytes of the trees of all runs together; each run gets an equal part."""

RejudgeOf = Callable[[Config], Rejudge]
"""Returns the judge and the questions for the config of a run."""


@dataclass(frozen=True)
class Comparison:
    """Runs to be shown: `rows` for tables, `runs` as JSON values for the page, best-of-N curves for both.

    `finished` has the questions of each run by the name of its folder.
    """

    runs: list[dict[str, Any]]
    rows: list[Row]
    curves: Curves
    finished: dict[str, Finished]


def compare(folders: Sequence[Path], rejudge_of: RejudgeOf) -> Comparison:
    """Read the events of every run and return them for tables and for the page.

    The best-of-N curve for a row comes from the widest best_of_n runs with the same `comparison_key`. Raises RunError
    for a folder that is no run.
    """
    runs: list[dict[str, Any]] = []
    summaries: list[Summary] = []
    widest: dict[str, list[_Run]] = {}
    finished: dict[str, Finished] = {}
    for folder in folders:
        run = _read(folder, rejudge_of)
        runs.append(_run_data(run, MOST_BYTES // len(folders)))
        summaries.append(run.summary)
        finished[folder.name] = {done.question: done for replayed in run.replays if (done := replayed.finished)}
        if run.config.search.strategy == "best_of_n":
            _keep_widest(widest.setdefault(comparison_key(run.summary.config), []), run)
    curves = {key: points for key, group in widest.items() if (points := _curve(group))}
    return Comparison(runs, pooled_rows(summaries, curves), curves, finished)


@dataclass(frozen=True)
class _Run:
    folder: Path
    config: Config
    summary: Summary
    replays: list[Replay]
    rejudge: Rejudge
    memory: list[dict[str, Any]]
    occupancy: list[dict[str, Any]]
    workers: list[dict[str, Any]]


def _read(folder: Path, rejudge_of: RejudgeOf) -> _Run:
    events = list(read_events(folder))
    summary = summarize(events)
    config = recorded_config(summary.config, str(folder / FILE_NAME), imports=False)
    summary = replace(summary, config=config.model_dump(mode="json"))
    replays = [replayed for replayed in replay(events).values() if replayed.finished]
    drawn = memory_timelines(events), occupancies(events), workers_ended(events)
    return _Run(folder, config, summary, replays, rejudge_of(config), *drawn)


def _keep_widest(kept: list[_Run], run: _Run) -> None:
    """Add a run to `kept` unless those are wider; drop them if they are narrower."""
    width = max((other.config.search.width for other in kept), default=0)
    if run.config.search.width > width:
        kept.clear()
    if run.config.search.width >= width:
        kept.append(run)


def _curve(runs: Sequence[_Run]) -> list[Point]:
    """Return the best-of-N curve of runs of one width; empty if a question is no longer in the task."""
    if not all(run.rejudge.knows(replayed) for run in runs for replayed in run.replays):
        return []
    first = runs[0]
    replays = chain.from_iterable(run.replays for run in runs)
    search = first.config.search
    return curve(replays, first.rejudge, search.aggregate, search.vote, doublings(search.width))


def _run_data(run: _Run, most_bytes: int) -> dict[str, Any]:
    """Return the summary, memory timelines and questions of a run as JSON values for the page."""
    values = summary_values(run.summary)
    values["name"] = run.folder.name
    values["memory"] = run.memory
    values["occupancy"] = run.occupancy
    values["workers"] = run.workers
    values["questions"] = list(_fitting(run, most_bytes))
    return values


def _fitting(run: _Run, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the data of the first questions, at most `MOST_QUESTIONS` and `most_bytes` of JSON."""
    size = 0
    for replayed in run.replays[:MOST_QUESTIONS]:
        question = question_data(replayed, run.config.search, run.rejudge)
        size += len(json.dumps(question))
        if size > most_bytes:
            return
        yield question


def curve_values(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the points of a best-of-N curve as JSON values."""
    return [
        {
            "branches": point.branches,
            "generated_tokens": point.generated_tokens,
            "mean_kv_tokens": point.mean_kv_tokens,
            **accuracy_values(point.accuracy),
        }
        for point in points
    ]
