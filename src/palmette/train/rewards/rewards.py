"""The reward of each response: a weighted sum of the judge's, a reward model's and functions of the user's own."""

import importlib.util
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from palmette import registry
from palmette.errors import ConfigError, RunError
from palmette.own_parts import finite_number, shown
from palmette.train.rewards.signature import call, convention_of
from palmette.train.rollout.responses import Response
from palmette.units import describe_error, nearest, one_line

BUILT_IN = ("judge", "score")
"""The judge's reward of a response, and the aggregated score of its steps by the reward model."""


@dataclass(frozen=True)
class Rewarded:
    """The reward of each response, None where no part of the sum applies; and how many calls failed and were left out.

    `parts` has the rewards by name, before their weights.
    """

    totals: list[float | None]
    parts: dict[str, list[float | None]]
    failed: int


class Rewards:
    """Rewards of responses as the config names them, with their weights.

    A function that raises, returns what is no finite number, or takes longer than `seconds` stops the run with the
    response shown (`on_error` stop), or counts as None for that response and is counted (skip). None means that a part
    does not apply: it is left out of the sum.
    """

    def __init__(self, weights: Mapping[str, float], *, seconds: float, on_error: Literal["stop", "skip"]) -> None:
        self._weights = dict(weights)
        self._functions = {name: find_reward(name) for name in weights if name not in BUILT_IN}
        self._seconds = seconds
        self._stops = on_error == "stop"

    def of(self, responses: Sequence[Response]) -> Rewarded:
        """Return the reward of each response. Raises RunError where a function fails and the config says stop."""
        failed = 0
        parts: dict[str, list[float | None]] = {}
        for name in self._weights:
            if name in BUILT_IN:
                parts[name] = [response.judged if name == "judge" else response.score for response in responses]
            else:
                parts[name], lost = self._called(name, responses)
                failed += lost
        totals: list[float | None] = []
        for place in range(len(responses)):
            told = [
                (self._weights[name], reward)
                for name, rewards in parts.items()
                if (reward := rewards[place]) is not None
            ]
            totals.append(sum(weight * reward for weight, reward in told) if told else None)
        return Rewarded(totals, parts, failed)

    def _called(self, name: str, responses: Sequence[Response]) -> tuple[list[float | None], int]:
        """Return a function's rewards, and for how many responses it failed."""
        function = self._functions[name]
        batches = [responses] if convention_of(function) == "trl" else [[response] for response in responses]
        rewards: list[float | None] = []
        failed = 0
        for batch in batches:
            try:
                returned = _within(self._seconds, partial(call, function, batch))
                rewards += [_reward(value) for value in returned]
            except Exception as error:
                if self._stops:
                    raise RunError(_told(name, batch[0], error, self._seconds)) from error
                rewards += [None] * len(batch)
                failed += len(batch)
        return rewards, failed


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return finite_number(value)
    except ValueError:
        raise ValueError(f"it returned {shown(value)}, and a reward is a finite number or None") from None


def _told(name: str, response: Response, error: Exception, seconds: float) -> str:
    cause = f"it took longer than train.reward_seconds {seconds:g}" if isinstance(error, TimeoutError) else None
    return (
        f"the reward {one_line(name, 80)} failed on question {one_line(response.question.id, 80)}: "
        f"{cause or describe_error(error)}. The response: {one_line(response.text, 120)!r}. "
        f"train.on_reward_error skip would leave it out"
    )


def _within(seconds: float, work: Callable[[], list[Any]]) -> list[Any]:
    """Return what `work` returns; raise TimeoutError after `seconds`. Work that hangs ends with the process."""
    done: queue.Queue[tuple[list[Any] | None, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001  # Raised again by the one who waits.
            done.put((None, error))

    threading.Thread(target=run, name="palmette-reward", daemon=True).start()
    try:
        returned, error = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    assert returned is not None
    return returned


def find_reward(name: str) -> Callable[..., Any]:
    """Return the reward function of this name: `package.module:name`, or `path/to/file.py:name` as verl's configs say.

    Importing it runs its code. Raises ConfigError if it cannot be imported or is not a function.
    """
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py") and attribute:
        found = _from_file(Path(path), attribute, name)
    elif registry.is_reference(name):
        found = registry.find_reference("reward", name)
    else:
        near = nearest(name, BUILT_IN)
        hint = f" Did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"train.rewards: no reward is named {one_line(name, 80)!r}: give judge, score, package.module:name or "
            f"file.py:name.{hint}"
        )
    if not callable(found):
        raise ConfigError(f"train.rewards: {one_line(name, 80)} is {shown(found)}, not a function")
    return found  # type: ignore[no-any-return]  # Checked just now.


def _from_file(path: Path, attribute: str, name: str) -> Any:
    if not path.is_file():
        raise ConfigError(f"train.rewards: there is no file {one_line(str(path), 200)}")
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
