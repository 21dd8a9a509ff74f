"""Checks answers with the scorers of reasoning-gym; those that evaluate answers get a parser of literals instead."""

import importlib
import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from palmette.score.checks import formula

LIBRARY = "reasoning_gym"


def load() -> Callable[[dict[str, Any]], Callable[[], str]]:
    """Load reasoning-gym; return a function that makes the check of a request with `answer` and a question's key.

    The function generates the question again, which reads no answer.
    """
    library: Any = importlib.import_module(LIBRARY)
    formula.take_the_place_of_eval(LIBRARY)

    @lru_cache(maxsize=4)
    def dataset(generator: str, seed: int, size: int, options: str) -> Any:
        return library.create_dataset(generator, size=size, seed=seed, **json.loads(options))

    @lru_cache(maxsize=64)
    def question(generator: str, seed: int, size: int, options: str, index: int) -> tuple[Any, dict[str, Any]]:
        made = dataset(generator, seed, size, options)
        entry = made[index]
        if entry["answer"] is not None and not isinstance(entry["answer"], str):
            # Some generators give sympy objects that their own scorers cannot read.
            entry = {**entry, "answer": str(entry["answer"])}
        return made, entry

    def prepare(request: dict[str, Any]) -> Callable[[], str]:
        options = json.dumps(request.get("options", {}), sort_keys=True)
        made, entry = question(request["generator"], request["seed"], request["size"], options, request["index"])
        return partial(_points if request.get("points") else _score, made, request["answer"], entry)

    return prepare


def _points(dataset: Any, answer: str, entry: dict[str, Any]) -> str:
    """Return the points of the generator's own scorer in hundredths; unparseable if they are not from 0 to 1."""
    try:
        points = round(100 * float(dataset.score_answer(answer, entry)))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  model text can raise anything in a scorer
        return "unparseable"
    return f"points {points}" if 0 <= points <= 100 else "unparseable"


def _score(dataset: Any, answer: str, entry: dict[str, Any]) -> str:
    """Return the outcome of the generator's own scorer. Raises nothing but MemoryError."""
    try:
        return "correct" if dataset.score_answer(answer, entry) >= 1.0 else "wrong"
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  model text can raise anything in a scorer
        return "unparseable"
