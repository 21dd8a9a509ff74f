"""Judges answers as mathematics, with exact numbers and math-verify."""

from dataclasses import dataclass

from palmette.score.extract import extract_answer, extract_reference
from palmette.score.judge import NO_VERDICT, Verdict, verdict_of
from palmette.score.verify import canonical, verify
from palmette.tasks.task import Question


@dataclass(frozen=True)
class MathJudge:
    """An answer is correct if it equals the reference as a mathematical expression."""

    seconds: float = 5.0
    by_answer = True

    def extract(self, solution: str) -> str | None:
        """Return the final answer of a solution, or None if it has none."""
        return extract_answer(solution)

    def canonical(self, answer: str) -> str:
        """Return the normal form of `verify.canonical`."""
        return canonical(answer)

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Verify an answer against the question's reference; without a reference there is no verdict."""
        if question.reference is None:
            return NO_VERDICT
        return verdict_of(verify(answer, extract_reference(question.reference), seconds=self.seconds))


plugin = MathJudge
