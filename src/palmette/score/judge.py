"""The judge contract: who decides whether an answer is right, and a plain reward function as a judge."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from palmette import registry
from palmette.errors import ConfigError, RunError
from palmette.score.extract import extract_answer
from palmette.score.verify import Outcome, canonical
from palmette.settings import TaskSettings
from palmette.tasks.task import Question
from palmette.units import one_line


@dataclass(frozen=True)
class Verdict:
    """What a judge finds of one solution: `correct`, `wrong`, `unparseable` or `timed_out`, and its reward.

    Both are None where nobody can tell, because the question has no reference.
    """

    outcome: str | None
    reward: float | None


NO_VERDICT = Verdict(None, None)


def verdict_of(outcome: Outcome) -> Verdict:
    """Return an outcome with its reward: 1 for a right answer, 0 for any other."""
    return Verdict(outcome.value, float(outcome is Outcome.CORRECT))


@runtime_checkable
class Judge(Protocol):
    """Reads answers out of solutions and decides which are right."""

    by_answer: bool
    """Whether a verdict depends on the answer alone, so that equal answers are judged once."""

    def extract(self, solution: str) -> str | None:
        """Return the final answer of a solution, None where it holds none."""

    def canonical(self, answer: str) -> str:
        """Return a form that equal answers share: votes are counted by it."""

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Decide about one solution, whose answer was extracted already."""


class FunctionJudge:
    """A reward function as a judge: a number for each solution, of which 1 and more is right.

    The function is called with those of `question`, `solution`, `answer` and `reference` that it names. It returns a
    number or a truth value, None for no verdict. Answers are read as mathematics, else as the last line.
    """

    by_answer = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)

    def extract(self, solution: str) -> str | None:
        """Return the final answer, or the last line that is not blank."""
        lines = [line.strip() for line in solution.splitlines() if line.strip()]
        return extract_answer(solution) or (lines[-1] if lines else None)

    def canonical(self, answer: str) -> str:
        """Return a form that equal answers share."""
        return canonical(answer)

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Call the function. Raises RunError, with the question, where it raises or returns no number."""
        place = f"the reward function {self._name} on question {one_line(question.id, 80)}"
        try:
            given = registry.call_by_name(
                self._function, question=question, solution=solution, answer=answer, reference=question.reference
            )
        except Exception as error:
            told = one_line(f"{type(error).__name__}: {error}", 200)
            raise RunError(f"{place} failed: {told}. The solution: {one_line(solution, 120)!r}") from error
        if given is None:
            return NO_VERDICT
        try:
            reward = float(given)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise RunError(f"{place} returned {one_line(repr(given), 80)}, and a reward is a finite number")
        return Verdict((Outcome.CORRECT if reward >= 1 else Outcome.WRONG).value, reward)


def load_judge(part: Any, settings: TaskSettings) -> Judge:
    """Return the judge that a name, an object, a class or a reward function stands for."""
    if isinstance(part, str):
        part = registry.find("judge", part)
    built = registry.build(part, settings=settings, seconds=settings.verify_seconds)
    if isinstance(built, Judge):
        return built
    if callable(built):
        return FunctionJudge(built)
    raise ConfigError(
        f"task.judge: a {type(built).__name__} is no judge: give a function that returns a reward, "
        f"or an object with extract, canonical, verdict and by_answer"
    )
