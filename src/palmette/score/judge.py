"""The judge contract: extracts answers and decides whether they are right; a reward function can be a judge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from palmette import registry
from palmette.errors import ConfigError, RunError
from palmette.own_parts import finite_number, name_of, place_in, shown, telling
from palmette.score.extract import extract_answer
from palmette.score.verify import Outcome, canonical
from palmette.settings import TaskSettings
from palmette.tasks.task import Question
from palmette.units import one_line


@dataclass(frozen=True)
class Verdict:
    """A judge's decision about one solution: the outcome and the reward.

    `outcome` is `correct`, `wrong`, `unparseable` or `timed_out`. Both are None if the solution cannot be judged, for
    example because the question has no reference answer.
    """

    outcome: str | None
    reward: float | None


NO_VERDICT = Verdict(None, None)


def verdict_of(outcome: Outcome) -> Verdict:
    """Return the verdict with this outcome and the reward 1 for `correct`, 0 for any other."""
    return Verdict(outcome.value, float(outcome is Outcome.CORRECT))


@runtime_checkable
class Judge(Protocol):
    """Extracts the final answer of a solution and decides whether it is right."""

    by_answer: bool
    """Whether a verdict depends on the question and the answer alone: then equal answers are judged once."""

    def extract(self, solution: str) -> str | None:
        """Return the final answer of a solution, or None if it has none."""

    def canonical(self, answer: str) -> str:
        """Return a normal form of an answer. Votes count two answers as the same if their normal forms are equal."""

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Return the verdict on one solution. `answer` is what `extract` returned for it."""


class FunctionJudge:
    """A reward function as a judge.

    The function is called with those of the arguments `question`, `solution`, `answer` and `reference` that it has
    parameters for. It returns the reward, a number or a bool, or None for no verdict. The outcome is `correct` from a
    reward of 1 on, else `wrong`. Answers are extracted as in mathematics; without such an answer the last line is
    taken.
    """

    by_answer = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.part_name = name_of(function)

    def extract(self, solution: str) -> str | None:
        """Return the final answer, or else the last line that is not blank; None for a blank solution."""
        lines = [line.strip() for line in solution.splitlines() if line.strip()]
        return extract_answer(solution) or (lines[-1] if lines else None)

    def canonical(self, answer: str) -> str:
        """Return the normal form of `verify.canonical`."""
        return canonical(answer)

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Return the reward of the function as a verdict. Raises RunError if it raises or returns no number."""
        place = f"the reward function {self.part_name} on question {one_line(question.id, 80)}"
        try:
            returned = registry.call_by_name(
                self._function, question=question, solution=solution, answer=answer, reference=question.reference
            )
        except Exception as error:
            cause = one_line(f"{type(error).__name__}: {error}", 200)
            line = place_in(self._function, error)
            at = f" at {line}" if line else ""
            raise RunError(f"{place} failed: {cause}{at}. The solution: {one_line(solution, 120)!r}") from error
        if returned is None:
            return NO_VERDICT
        try:
            reward = finite_number(returned)
        except ValueError:
            raise RunError(f"{place} returned {shown(returned)}, and a reward is a finite number") from None
        return Verdict((Outcome.CORRECT if reward >= 1 else Outcome.WRONG).value, reward)


def load_judge(part: Any, settings: TaskSettings) -> Judge:
    """Return the judge for a registered name, a judge object, a class to build one with, or a reward function.

    Raises ConfigError for anything else and for an unknown name, RunError for a class that fails.
    """
    if isinstance(part, str):
        part = registry.find("judge", part)
    with telling("judge", name_of(part), "its constructor", RunError):
        built = registry.build(part, settings=settings, seconds=settings.verify_seconds)
    if isinstance(built, Judge):
        return built
    if callable(built):
        return FunctionJudge(built)
    raise ConfigError(
        f"task.judge: a {type(built).__name__} is no judge: give a function that returns a reward, "
        f"or an object with extract, canonical, verdict and by_answer"
    )
