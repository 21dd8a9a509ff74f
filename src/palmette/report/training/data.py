"""Turns the events of a training run into the data of its page."""

from collections import deque
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
    RowsTested,
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
    on_rows: dict[int, RowsTested] = {}
    checkpoints: dict[int, CheckpointWritten] = {}
    notices: dict[tuple[str, int], Noticed] = {}
    timelines: dict[tuple[float, str], MemoryTimeline] = {}
    memory: list[Event] = []
    samples = KeptSamples(most_sample_bytes)
    for event in events:
        if isinstance(event, UpdateDone):
            samples.add(event.update, event.samples, event.trees)
            updates[event.update] = UpdateDone(
                event.update, event.position, event.numbers, event.seconds, event.peak_bytes
            )
        elif isinstance(event, Evaluated):
            tested[event.update] = event
        elif isinstance(event, RowsTested):
            on_rows[event.update] = event
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
    row_tests = [on_rows[update] for update in sorted(on_rows)]
    apart: Mapping[str, float] = {
        "evaluation": sum(event.seconds for event in tests),
        "test": sum(event.seconds for event in row_tests),
        "checkpoint": sum(event.seconds for event in checkpoints.values()),
    }
    return {
        "updates": [event.update for event in done],
        "tokens": [tokens for tokens, _ in costs.values()],
        "seconds": [seconds for _, seconds in costs.values()],
        "numbers": {**_numbers(done), **_test_numbers(done, row_tests)},
        "tested": [_tested(event, costs) for event in tests],
        "phases": _phases(done, apart),
        "notices": _notices(notices),
        "checkpoint": _last(checkpoints),
        "summary": {**_summary(done, tests, costs), **_losses(done, row_tests)},
        "samples": samples.entries(),
        "samples_every": samples.every,
        "memory": memory_timelines([*timelines.values(), *memory]),
    }


_Costs = dict[int, tuple[float, float]]
"""By update: the tokens and the seconds spent on updates up to and including it. Tokens are those generated, or those
of the rows that were trained on."""


def _costs(done: list[UpdateDone]) -> _Costs:
    costs: _Costs = {}
    tokens = seconds = 0.0
    for event in done:
        told = event.numbers.get("generated_tokens", event.numbers.get("fed_tokens"))
        tokens += _drawable(told) or 0.0
        seconds += sum(event.seconds.values())
        costs[event.update] = tokens, round(seconds, 3)
    return costs


def _drawable(value: float | None) -> float | None:
    return None if value is None or abs(value) > LARGEST_DRAWN else float(f"{value:.7g}")


def _numbers(done: list[UpdateDone]) -> dict[str, list[float | None]]:
    """Return a list for each statistic with an entry for each update, None where it was not told."""
    names = dict.fromkeys(name for event in done for name in event.numbers)
    return {name: [_drawable(event.numbers.get(name)) for event in done] for name in names}


def _test_numbers(done: list[UpdateDone], tests: list[RowsTested]) -> dict[str, list[float | None]]:
    """Return a list for each statistic of tests on rows, `test_NAME`: at an update that of the last test up to it."""
    names = dict.fromkeys(name for event in tests for name in event.numbers)
    found: dict[str, list[float | None]] = {f"test_{name}": [] for name in names}
    waiting, last = deque(tests), dict[str, float]()
    for event in done:
        while waiting and waiting[0].update <= event.update:
            last = waiting.popleft().numbers
        for name in names:
            found[f"test_{name}"].append(_drawable(last.get(name)))
    return found


def _losses(done: list[UpdateDone], tests: list[RowsTested]) -> dict[str, float | None]:
    """Return the losses of training on rows for the table of results: of the first and last updates, and of tests."""
    told = [_drawable(event.numbers.get("loss")) for event in done if "epoch" in event.numbers]
    losses = [value for value in told if value is not None]
    ends = max(1, min(_ENDS, len(losses) // 10))
    tested = [_drawable(event.numbers.get("loss")) for event in tests]
    return {
        "first_loss": _mean(losses[:ends]),
        "last_loss": _mean(losses[-ends:]),
        "loss_before": tested[0] if tests and tests[0].update == 0 else None,
        "loss_after": tested[-1] if tests else None,
    }


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


def _phases(done: list[UpdateDone], apart: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the phases in the order in which they were first told; `apart` has the seconds of those between updates.

    `each` has the seconds of every update, None for a phase that is not part of updates; `total` is None where no
    seconds were told, `peak` where no bytes were.
    """
    names = dict.fromkeys(name for event in done for name in event.seconds)
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
