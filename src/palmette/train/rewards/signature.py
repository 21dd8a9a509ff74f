"""Calls a reward function as it was written: in TRL's way, in verl's, or with question, solution, answer, reference."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from palmette import registry
from palmette.train.rollout.responses import Response

Convention = Literal["trl", "verl", "palmette"]


def convention_of(function: Callable[..., Any]) -> Convention:
    """Tell how a reward function is called, by the names of its parameters.

    TRL's takes `prompts` or `completions` and returns a list for the whole batch. verl's takes `solution_str` or
    `ground_truth` and returns a number, or a table with `score`, for one response. Any other is called for one response
    with those of `question`, `solution`, `answer` and `reference` that it names.
    """
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return "palmette"
    if names & {"completions", "prompts"}:
        return "trl"
    return "verl" if names & {"solution_str", "ground_truth"} else "palmette"


def call(function: Callable[..., Any], responses: Sequence[Response]) -> list[Any]:
    """Return what the function returns for each response. Async functions are awaited, all responses at once.

    Raises ValueError if a function in TRL's way returns another number of rewards than there are responses.
    """
    if convention_of(function) != "trl":
        single = _verl_arguments if convention_of(function) == "verl" else _own_arguments
        returned = [registry.call_by_name(function, **single(response)) for response in responses]
        values = [_awaited(returned) if any(map(inspect.isawaitable, returned)) else returned][0]
        return [value["score"] if isinstance(value, Mapping) else value for value in values]
    answer = registry.call_by_name(function, **_trl_arguments(responses))
    rewards = _awaited([answer])[0] if inspect.isawaitable(answer) else answer
    found = list(rewards)
    if len(found) != len(responses):
        raise ValueError(f"returned {len(found)} rewards for {len(responses)} completions")
    return found


def _awaited(returned: Sequence[Any]) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*returned))

    return asyncio.run(all_of_them())


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
    """Return the arguments of TRL's reward functions: conversations, unless a row's prompt was a plain text."""
    given = [columns_of(response) for response in responses]
    plain = [isinstance(columns.get("prompt"), str) for columns in given]
    names = dict.fromkeys(name for columns in given for name in columns if name != "prompt")
    answers: dict[str, Any] = {"answer": [response.question.reference for response in responses]}
    columns = {name: [row.get(name) for row in given] for name in names}
    return {
        **answers,
        **columns,
        "prompts": [
            row["prompt"] if is_plain else list(response.question.messages)
            for response, row, is_plain in zip(responses, given, plain, strict=True)
        ],
        "completions": [
            response.text if is_plain else [{"role": "assistant", "content": response.text}]
            for response, is_plain in zip(responses, plain, strict=True)
        ],
        "completion_ids": [list(response.tokens) for response in responses],
        "trainer_state": None,
        "log_extra": _ignored,
        "log_metric": _ignored,
        "environments": None,
    }


def columns_of(response: Response) -> Mapping[str, Any]:
    """Return the columns of the row that the question came from; nothing for a question that came from no file."""
    columns = response.question.key.get("columns", {})
    return columns if isinstance(columns, Mapping) else {}


def _ignored(*_: object, **__: object) -> None:
    """Take what a reward function wants to have logged."""
