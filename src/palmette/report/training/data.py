"""Turns the events of a training run into the data of its page."""

from collections.abc import Iterable, Mapping
from typing import Any

from palmette.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    MemoryTimeline,
    Noticed,
    OomRetry,
    Reclaimed,
    UpdateDone,
)
from palmette.report.memory_timeline import memory_timelines
from palmette.report.training.sample_data import KeptSamples

LARGEST_DRAWN = 1e18
"""Statistics beyond this are not drawn: only damage or divergence makes them, and sums of them overflow."""

_ENDS = 10
"""Updates whose mean reward stands for the beginning, or the end, of a run: a tenth of all, at most so many."""


def training_data(events: Iterable[Event], most_sample_bytes: int) -> dict[str, Any]:
    """Return a training run as JSON values, its samples in at most `most_sample_bytes` of JSON.

    Of several events about the same update, which a run that went on from a checkpoint may have, the last counts. The
    events are read once and not kept, so that a long run can be drawn while it goes on.
    """
    updates: dict[int, UpdateDone] = {}
    tested: dict[int, Evaluated] = {}
    checkpoints: dict[int, CheckpointWritten] = {}
    notices: dict[tuple[str, int], Noticed] = {}
    timelines: dict[tuple[float, str], MemoryTimeline] = {}
    memory: list[Event] = []
    samples = KeptSamples(most_sample_bytes)
    for event in events:
        if isinstance(event, UpdateDone):
            samples.add(event.update, event.samples)
            updates[event.update] = UpdateDone(
                event.update, event.position, event.numbers, event.seconds, event.peak_bytes
            )
        elif isinstance(event, Evaluated):
            tested[event.update] = event
        elif isinstance(event, CheckpointWritten):
            checkpoints[event.update] = event
        elif isinstance(event, Noticed):
            notices[event.about, event.update] = event
        elif isinstance(event, MemoryTimeline):
            timelines[event.began, event.device] = event
        elif isinstance(event, OomRetry | Reclaimed):
            memory.append(event)
    done = [updates[update] for update in sorted(updates)]
    tests = [tested[update] for update in sorted(tested)]
    costs = _costs(done)
    return {
        "updates": [event.update for event in done],
        "tokens": [tokens for tokens, _ in costs.values()],
        "seconds": [seconds for _, seconds in costs.values()],
        "numbers": _numbers(done),
        "tested": [_tested(event, costs) for event in tests],
        "phases": _phases(done, tests, list(checkpoints.values())),
        "notices": _notices(notices),
        "checkpoint": _last(checkpoints),
        "summary": _summary(done, tests, costs),
        "samples": samples.entries(),
        "samples_every": samples.every,
        "memory": memory_timelines([*timelines.values(), *memory]),
    }


_Costs = dict[int, tuple[float, float]]
"""By update: the tokens generated and the seconds spent on updates up to and including it."""


def _costs(done: list[UpdateDone]) -> _Costs:
    costs: _Costs = {}
    tokens = seconds = 0.0
    for event in done:
        tokens += _drawable(event.numbers.get("generated_tokens")) or 0.0
        seconds += sum(event.seconds.values())
        costs[event.update] = tokens, round(seconds, 3)
    return costs


def _drawable(value: float | None) -> float | None:
    return None if value is None or abs(value) > LARGEST_DRAWN else float(f"{value:.7g}")


def _numbers(done: list[UpdateDone]) -> dict[str, list[float | None]]:
    """Return a list for each statistic with an entry for each update, None where it was not told."""
    names = dict.fromkeys(name for event in done for name in event.numbers)
    return {name: [_drawable(event.numbers.get(name)) for event in done] for name in names}


def _tested(event: Evaluated, costs: _Costs) -> dict[str, Any]:
    before = [update for update in costs if update <= event.update]
    tokens, seconds = costs[before[-1]] if before else (0.0, 0.0)
    return {
        "update": event.update,
        "tokens": tokens,
        "seconds": seconds,
        "questions": event.questions,
        "single": _drawable(event.single),
        "elected": _drawable(event.elected),
        "error": event.error,
    }


def _phases(
    done: list[UpdateDone], tests: list[Evaluated], checkpoints: list[CheckpointWritten]
) -> list[dict[str, Any]]:
    """Return the phases in the order in which they were first told.

    `each` has the seconds of every update, None for a phase that is not part of updates; `total` is None where no
    seconds were told, `peak` where no bytes were.
    """
    names = dict.fromkeys(name for event in done for name in event.seconds)
    apart: Mapping[str, float] = {
        "evaluation": sum(event.seconds for event in tests),
        "checkpoint": sum(event.seconds for event in checkpoints),
    }
    peaks: dict[str, int] = {}
    for event in done:
        for name, peak in event.peak_bytes.items():
            peaks[name] = max(peaks.get(name, 0), peak)
    told = dict.fromkeys((*names, *(name for name, seconds in apart.items() if seconds), *peaks))
    phases = []
    for name in told:
        each = [event.seconds.get(name, 0.0) for event in done] if name in names else None
        total = sum(each) if each is not None else apart.get(name)
        phases.append(
            {
                "name": name,
                "each": each,
                "total": None if total is None else round(total, 3),
                "peak": peaks.get(name),
            }
        )
    return phases


def _notices(notices: Mapping[tuple[str, int], Noticed]) -> list[dict[str, Any]]:
    """Return one entry for everything that was noticed: its last text, the updates, how often."""
    found: dict[str, dict[str, Any]] = {}
    for (about, update), event in sorted(notices.items(), key=lambda item: item[0][1]):
        entry = found.setdefault(about, {"about": about, "first": update, "times": 0})
        entry |= {"last": update, "text": event.text, "times": entry["times"] + 1}
    return list(found.values())


def _last(checkpoints: Mapping[int, CheckpointWritten]) -> dict[str, Any] | None:
    if not checkpoints:
        return None
    event = checkpoints[max(checkpoints)]
    return {"update": event.update, "folder": event.folder, "bytes": event.size_bytes}


def _summary(done: list[UpdateDone], tests: list[Evaluated], costs: _Costs) -> dict[str, Any]:
    """Return the row of a run in the table of results; None for what was not told."""
    rewards = [value for event in done if (value := _drawable(event.numbers.get("reward"))) is not None]
    ends = max(1, min(_ENDS, len(rewards) // 10))
    tokens, seconds = costs[done[-1].update] if done else (0.0, 0.0)
    best = max(tests, key=lambda event: (event.single, -event.update), default=None)
    return {
        "updates": done[-1].update if done else 0,
        "first_reward": _mean(rewards[:ends]),
        "last_reward": _mean(rewards[-ends:]),
        "before": _accuracy(next((event for event in tests if event.update == 0), None)),
        "last": _accuracy(tests[-1] if tests else None),
        "best": _accuracy(best),
        "tokens": tokens,
        "seconds": seconds,
        "peak": max((peak for event in done for peak in event.peak_bytes.values()), default=None),
    }


def _accuracy(event: Evaluated | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {"update": event.update, "single": _drawable(event.single), "error": event.error}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
