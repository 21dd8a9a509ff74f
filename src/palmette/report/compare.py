"""Runs put side by side: each one's story, pooled rows, best-of-N at every smaller N."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from palmette.config import recorded_config
from palmette.event_log import FILE_NAME, read_events
from palmette.report.grid import Curves, Row, rows, setting
from palmette.report.held import held_story
from palmette.report.story import question_story
from palmette.report.table import accuracy_values, summary_values
from palmette.search.curve import Point, curve, doublings
from palmette.search.rejudge import Rejudge
from palmette.search.replay import Replay, replay
from palmette.search.summary import Summary, summarize
from palmette.settings import Config

MOST_QUESTIONS = 200
MOST_BYTES = 20_000_000
"""Trees of all runs together, as JSON."""

RejudgeOf = Callable[[Config], Rejudge]


@dataclass(frozen=True)
class Comparison:
    """Some runs as their tables show them (`rows`) and as their page does (`stories`, JSON values)."""

    stories: list[dict[str, Any]]
    rows: list[Row]
    curves: Curves


def compare(folders: Sequence[Path], rejudge_of: RejudgeOf) -> Comparison:
    """Read every run once. Best-of-N comes from the widest best_of_n runs among those that may be compared."""
    stories: list[dict[str, Any]] = []
    summaries: list[Summary] = []
    widest: dict[str, list[_Run]] = {}
    for folder in folders:
        one = _read(folder, rejudge_of)
        stories.append(_story(one, MOST_BYTES // len(folders)))
        summaries.append(one.summary)
        if one.config.search.strategy == "best_of_n":
            _keep_widest(widest.setdefault(setting(one.summary.config), []), one)
    curves = {shared: points for shared, runs in widest.items() if (points := _curve(runs))}
    return Comparison(stories, rows(summaries, curves), curves)


@dataclass(frozen=True)
class _Run:
    folder: Path
    config: Config
    summary: Summary
    told: list[Replay]
    rejudge: Rejudge
    held: list[dict[str, Any]]


def _read(folder: Path, rejudge_of: RejudgeOf) -> _Run:
    events = list(read_events(folder))
    summary = summarize(events)
    config = recorded_config(summary.config, str(folder / FILE_NAME), imports=False)
    summary = replace(summary, config=config.model_dump(mode="json"))
    told = [one for one in replay(events).values() if one.finished]
    return _Run(folder, config, summary, told, rejudge_of(config), held_story(events))


def _keep_widest(kept: list[_Run], one: _Run) -> None:
    width = max((run.config.search.width for run in kept), default=0)
    if one.config.search.width > width:
        kept.clear()
    if one.config.search.width >= width:
        kept.append(one)


def _curve(runs: Sequence[_Run]) -> list[Point]:
    """Return no point where the task has changed since: what cannot be judged again has no accuracy."""
    if not all(run.rejudge.knows(one) for run in runs for one in run.told):
        return []
    first = runs[0]
    told = chain.from_iterable(run.told for run in runs)
    search = first.config.search
    return curve(told, first.rejudge, search.aggregate, search.vote, doublings(search.width))


def _story(one: _Run, most_bytes: int) -> dict[str, Any]:
    values = summary_values(one.summary)
    values["name"] = one.folder.name
    values["memory"] = one.held
    values["stories"] = list(_fitting(one, most_bytes))
    return values


def _fitting(one: _Run, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the first questions as long as they fit."""
    spent = 0
    for question in one.told[:MOST_QUESTIONS]:
        story = question_story(question, one.config.search, one.rejudge)
        spent += len(json.dumps(story))
        if spent > most_bytes:
            return
        yield story


def curve_values(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the points as JSON values."""
    return [
        {
            "branches": point.branches,
            "generated_tokens": point.generated_tokens,
            "mean_kv_tokens": point.mean_kv_tokens,
            **accuracy_values(point.accuracy),
        }
        for point in points
    ]
