"""The reward of each response: a weighted sum of the judge's, a reward model's and functions of the user's own."""

import hashlib
import importlib.util
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from palmette import registry
from palmette.errors import ConfigError, RunError
from palmette.own_parts import place_in, shown
from palmette.score.judges.gym import gym_points
from palmette.train.rewards.signature import (
    LARGEST,
    Logged,
    TrainerState,
    as_failure,
    call_batch,
    call_each,
    convention_of,
    is_async,
    small_number,
)
from palmette.train.rollout.responses import Response
from palmette.units import describe_error, nearest, one_line, one_line_path

BUILT_IN: dict[str, Callable[[Response], float | None]] = {
    "judge": lambda response: response.judged,
    "score": lambda response: response.score,
    "gym": lambda response: gym_points(response.question, response.text),
}
"""The judge's reward of a response; the aggregated score of its steps by the reward model; the points of the scorer of
reasoning-gym, which may be a part of the full ones."""

_LONGEST_VALUE = 200
"""Characters that are kept of what a function logs of a response."""

_LOOP_SECONDS = 1.0
"""What the loop that calls async functions may take beside the limit of each call, which it keeps itself."""


@dataclass(frozen=True)
class Rewarded:
    """The reward of each response, None where no part of the sum applies; and how many calls failed and were left out.

    `parts` has the rewards by name, those of files without their folder, before their weights. `metrics` are the
    numbers that functions logged, `columns` what they logged of each response.
    """

    totals: list[float | None]
    parts: dict[str, list[float | None]]
    failed: int
    metrics: dict[str, list[float]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)


class Rewards:
    """Rewards of responses as the config names them, with their weights.

    A function that raises, returns what is no finite number, or takes longer than `seconds` stops the run with the
    response shown (`on_error` stop), or counts as None for that response and is counted (skip). None means that a part
    does not apply: it is left out of the sum. `digests` has a hash of each function's file, empty where there is none.
    """

    def __init__(self, weights: Mapping[str, float], *, seconds: float, on_error: Literal["stop", "skip"]) -> None:
        self._weights = dict(weights)
        self._names = _short_names(weights)
        self._functions = {name: find_reward(name) for name in weights if name not in BUILT_IN}
        self.digests = {name: _digest_of(name, function) for name, function in self._functions.items()}
        self._seconds = seconds
        self._stops = on_error == "stop"

    def of(self, responses: Sequence[Response], state: TrainerState | None = None) -> Rewarded:
        """Return the reward of each response; `state` tells functions in TRL's way how far training is.

        Raises RunError where a function fails and the config says stop.
        """
        failed, logged = 0, Logged()
        parts: dict[str, list[float | None]] = {}
        for name, shown_as in self._names.items():
            parts[shown_as], lost = self._checked(name, responses, state or TrainerState(), logged)
            failed += lost
        totals: list[float | None] = []
        for place in range(len(responses)):
            told = [
                (weight, reward)
                for weight, rewards in zip(self._weights.values(), parts.values(), strict=True)
                if (reward := rewards[place]) is not None
            ]
            totals.append(self._sum(told, responses[place]) if told else None)
        metrics = {one_line(name, 60): list(numbers) for name, numbers in logged.metrics.items()}
        columns = {
            one_line(name, 60): [one_line(str(value), _LONGEST_VALUE) for value in values]
            for name, values in logged.columns.items()
        }
        return Rewarded(totals, parts, failed, metrics, columns)

    def _sum(self, told: Sequence[tuple[float, float]], response: Response) -> float:
        total = sum(weight * reward for weight, reward in told)
        if not abs(total) <= LARGEST:
            raise RunError(
                f"the weighted sum of the rewards of question {one_line(response.question.id, 80)} is {total:g}, and "
                f"it may be {LARGEST:g} at the most: lower the weights of train.rewards"
            )
        return total

    def _checked(
        self, name: str, responses: Sequence[Response], state: TrainerState, logged: Logged
    ) -> tuple[list[float | None], int]:
        """Return the rewards of one name, and for how many responses there is none because it failed."""
        rewards: list[float | None] = []
        failed = 0
        for response, value in zip(responses, self._returned(name, responses, state, logged), strict=True):
            try:
                rewards.append(_reward(value))
            except Exception as error:
                if self._stops:
                    place = place_in(self._functions.get(name), error)
                    raise RunError(_told(name, response, error, place, self._seconds)) from error
                rewards.append(None)
                failed += 1
        return rewards, failed

    def _returned(self, name: str, responses: Sequence[Response], state: TrainerState, logged: Logged) -> Iterator[Any]:
        """Yield what a function returns for each response, or the exception that it raised; call it when asked."""
        if name in BUILT_IN:
            yield from map(BUILT_IN[name], responses)
            return
        function, seconds = self._functions[name], self._seconds
        if convention_of(function) == "trl":
            yield from _each(_within(seconds, partial(call_batch, function, responses, state, logged)), len(responses))
        elif is_async(function):
            ended: list[Response] = []
            work = partial(call_each, function, responses, seconds, logged, ended)
            yield from _each(_within(seconds + _LOOP_SECONDS, work, ended), len(responses))
        else:
            for response in responses:
                yield from _each(_within(seconds, partial(call_each, function, [response], seconds, logged)), 1)


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Return what each reward is called in statistics: of files only the last part, unless two would be the same."""
    short = {name: Path(name).name if name.rpartition(":")[0].endswith(".py") else name for name in names}
    called = Counter(short.values())
    return {name: own if called[own] == 1 else name for name, own in short.items()}


def _each(returned: list[Any] | Exception, count: int) -> list[Any]:
    return [returned] * count if isinstance(returned, Exception) else returned


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Exception):
        raise value
    try:
        return small_number(value)
    except ValueError:
        told = f"it returned {shown(value)}, and a reward is a finite number up to {LARGEST:g} or None"
        raise ValueError(told) from None


def _told(name: str, response: Response, error: Exception, place: str | None, seconds: float) -> str:
    cause = f"it took longer than train.reward_seconds {seconds:g}" if isinstance(error, TimeoutError) else None
    return (
        f"the reward {one_line(name, 300)} failed on question {one_line(response.question.id, 80)}: "
        f"{cause or describe_error(error)}{f' at {place}' if place else ''}. "
        f"The response: {one_line(response.text, 120)!r}. train.on_reward_error skip would leave it out"
    )


def _within(seconds: float, work: Callable[[], list[Any]], ended: Sequence[Response] = ()) -> list[Any] | Exception:
    """Return what `work` returns, or its exception, or TimeoutError after `seconds` in which `ended` did not grow.

    Calls at once have limits of their own; `ended` is for an async function that blocks where it should wait, so that
    one call runs after the other. Work that hangs ends with the process. Raises an interrupt.
    """
    done: queue.Queue[list[Any] | BaseException] = queue.Queue()

    def run() -> None:
        try:
            done.put(work())
        except BaseException as error:  # noqa: BLE001  # Told to the one who waits.
            done.put(error)

    threading.Thread(target=run, name="palmette-reward", daemon=True).start()
    before = 0
    while True:
        try:
            returned = done.get(timeout=seconds)
            break
        except queue.Empty:
            if len(ended) == before:
                return TimeoutError()
            before = len(ended)
    return as_failure(returned) if isinstance(returned, BaseException) else returned


def find_reward(name: str) -> Callable[..., Any]:
    """Return the reward function of this name: `package.module:name`, or `path/to/file.py:name` as verl's configs say.

    Importing it runs its code. Raises ConfigError if it cannot be imported or is not a function.
    """
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py") and attribute:
        found = _from_file(Path(path).expanduser(), attribute, name)
    elif registry.is_reference(name):
        found = registry.find_reference("reward", name)
    else:
        near = nearest(name, BUILT_IN)
        hint = f" Did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"train.rewards: no reward is named {one_line(name, 80)!r}: give judge, score, gym, package.module:name "
            f"or file.py:name.{hint}"
        )
    if not callable(found):
        raise ConfigError(f"train.rewards: {one_line(name, 80)} is {shown(found)}, not a function")
    return found  # type: ignore[no-any-return]  # Checked just now.


def check_reward_files(names: Iterable[str]) -> None:
    """Raise ConfigError for a reward `file.py:name` whose file is not there. Imports nothing."""
    for name in names:
        path, _, attribute = name.rpartition(":")
        if path.endswith(".py") and attribute:
            _check_file(Path(path).expanduser())


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"train.rewards: there is no file {one_line_path(path.absolute())}; a relative path starts at the working "
            f"folder"
        )


def _digest_of(name: str, function: Callable[..., Any]) -> str:
    path, _, _ = name.rpartition(":")
    module = getattr(function, "__module__", None) or type(function).__module__
    file = path if path.endswith(".py") else getattr(sys.modules.get(module), "__file__", None)
    try:
        return hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest() if file else ""
    except OSError:
        return ""


def _from_file(path: Path, attribute: str, name: str) -> Any:
    _check_file(path)
    module_name = f"palmette_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"train.rewards: {one_line(name, 120)} cannot be imported: {describe_error(error)}"
        ) from error
    if not hasattr(module, attribute):
        near = nearest(attribute, [known for known in dir(module) if not known.startswith("_")])
        hint = f" Did you mean {near!r}?" if near else ""
        raise ConfigError(f"train.rewards: {one_line(str(path), 120)} has no {attribute!r}.{hint}")
    return getattr(module, attribute)
