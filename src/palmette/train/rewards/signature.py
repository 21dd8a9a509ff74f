"""Calls a reward function as it was written: in TRL's way, in verl's, or with question, solution, answer, reference."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palmette import registry
from palmette.own_parts import finite_number, shown
from palmette.train.rollout.responses import Response
from palmette.units import describe_error, one_line

Convention = Literal["trl", "verl", "palmette"]

_TRL = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
_VERL = {"solution_str", "ground_truth"}


LARGEST = 1e18
"""No reward and no metric is larger: sums and squares of larger ones overflow, in float32 from 3e38 on."""


def small_number(value: Any) -> float:
    """Return a number of any library as a float. Raises ValueError for what is none and for one above `LARGEST`."""
    number = finite_number(value)
    if abs(number) > LARGEST:
        raise ValueError("too large")
    return number


@dataclass(frozen=True)
class TrainerState:
    """How far training is, under the names that TRL's `trainer_state` has: updates done, updates in all, epochs."""

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0


@dataclass
class Logged:
    """What reward functions want to have logged: numbers of the whole update, and a text for each response."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def metric(self, name: str, value: Any) -> None:
        """Take a number; several of one name are averaged. Raises ValueError for what is none."""
        try:
            number = small_number(value)
        except ValueError:
            raise ValueError(
                f"it logged {one_line(str(name), 80)} as {shown(value)}, and a metric is a finite number up to "
                f"{LARGEST:g}"
            ) from None
        self.metrics.setdefault(str(name), []).append(number)

    def add(self, other: "Logged") -> None:
        """Take the numbers that another one has."""
        for name, numbers in other.metrics.items():
            self.metrics.setdefault(name, []).extend(numbers)


def convention_of(function: Callable[..., Any]) -> Convention:
    """Tell how a reward function is called, by the names of its parameters.

    TRL's takes `prompts`, `completions` or `completion_ids` and returns a list for the whole batch. verl's takes
    `solution_str` or `ground_truth` and returns a number, or a table with `score`, for one response. Any other is
    called for one response with those of `question`, `solution`, `answer` and `reference` that it names.
    """
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return "palmette"
    if names & _TRL:
        return "trl"
    return "verl" if names & _VERL else "palmette"


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether a call of the function has to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def call_batch(
    function: Callable[..., Any], responses: Sequence[Response], state: TrainerState, logged: Logged
) -> list[Any]:
    """Return what a function in TRL's way returns for each response.

    Raises ValueError if it returns or logs another number of values than there are responses.
    """

    def log_extra(column: str, values: Sequence[Any]) -> None:
        if len(values) != len(responses):
            raise ValueError(f"log_extra got {len(values)} values for {len(responses)} completions")
        logged.columns[str(column)] = list(values)

    given = {
        **_trl_arguments(responses), "trainer_state": state, "log_extra": log_extra, "log_metric": logged.metric,
    }  # fmt: skip
    answer = registry.call_by_name(function, **given)
    rewards = list(asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer)
    if len(rewards) != len(responses):
        raise ValueError(f"returned {len(rewards)} rewards for {len(responses)} completions")
    return rewards


def call_each(
    function: Callable[..., Any],
    responses: Sequence[Response],
    seconds: float,
    logged: Logged,
    ended: list[Response] | None = None,
) -> list[Any]:
    """Return what a function in another way returns for each response, or the exception that it raised.

    An async function is called for all responses at once, and each call ends with TimeoutError after `seconds`. Those
    whose calls have ended are put into `ended`.
    """
    arguments = _verl_arguments if convention_of(function) == "verl" else _own_arguments

    async def called(response: Response) -> Any:
        try:
            return await registry.call_by_name(function, **arguments(response))
        except SystemExit as error:  # It would end the loop, and with it the calls for all other responses.
            raise as_failure(error) from error
        finally:
            if ended is not None:
                ended.append(response)

    async def one(response: Response) -> Any:
        try:
            return await asyncio.wait_for(called(response), seconds)
        except asyncio.TimeoutError:  # Not Python's own before 3.11.
            raise TimeoutError from None

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*map(one, responses), return_exceptions=True))

    if is_async(function):
        returned = asyncio.run(all_of_them())
    else:
        returned = [registry.call_by_name(function, **arguments(response)) for response in responses]
    return [_score(value, logged) for value in returned]


def as_failure(error: BaseException) -> Exception:
    """Return what a function raised as an Exception: `sys.exit` in a reward must not end the run as if all was well.

    Raises the error itself if it is an interrupt.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt):
        raise error
    failure = RuntimeError(f"it raised {describe_error(error)}")
    failure.__cause__ = error
    return failure


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _score(value: Any, logged: Logged) -> Any:
    """Return the score of a table that verl's functions may return; its other numbers are logged.

    For a table that has none, or a number that cannot be logged, it is the error: other responses keep their scores.
    """
    if not isinstance(value, Mapping):
        return value
    numbers = {name: number for name, number in value.items() if name != "score" and isinstance(number, int | float)}
    try:
        if "score" not in value:
            raise ValueError(f"it returned {shown(dict(value))}, a table without score")
        own = Logged()
        for name, number in numbers.items():
            own.metric(name, number)
    except ValueError as error:
        return error
    logged.add(own)
    return value["score"]


def _own_arguments(response: Response) -> dict[str, Any]:
    question = response.question
    return {
        "question": question,
        "solution": response.text,
        "answer": response.answer,
        "reference": question.reference,
    }


def _verl_arguments(response: Response) -> dict[str, Any]:
    columns = columns_of(response)
    reward_model = columns.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return {
        "data_source": columns.get("data_source", response.question.id),
        "solution_str": response.text,
        "ground_truth": response.question.reference if truth is None else truth,
        "extra_info": columns.get("extra_info", {}),
    }


def _trl_arguments(responses: Sequence[Response]) -> dict[str, Any]:
    """Return the arguments of TRL's reward functions: conversations, unless a row's prompt was a plain text.

    Columns are those of the rows, but for `prompt`, `completion` and `completion_ids`, as in TRL.
    """
    given = [columns_of(response) for response in responses]
    plain = [isinstance(columns.get("prompt"), str) for columns in given]
    own = ("prompt", "completion", "completion_ids")
    names = dict.fromkeys(name for columns in given for name in columns if name not in own)
    return {
        "answer": [response.question.reference for response in responses],
        **{name: [row.get(name) for row in given] for name in names},
        "prompts": [
            row["prompt"] if is_plain else list(response.question.messages)
            for response, row, is_plain in zip(responses, given, plain, strict=True)
        ],
        "completions": [
            response.text if is_plain else [{"role": "assistant", "content": response.text}]
            for response, is_plain in zip(responses, plain, strict=True)
        ],
        "completion_ids": [list(response.tokens) for response in responses],
        "environments": None,
    }


def columns_of(response: Response) -> Mapping[str, Any]:
    """Return the columns of the row that the question came from; nothing for a question that came from no file."""
    columns = response.question.key.get("columns", {})
    return columns if isinstance(columns, Mapping) else {}
