"""Judges answers as mathematics, by math-verify."""

from dataclasses import dataclass

from palmette.score.extract import extract_answer, extract_reference
from palmette.score.judge import NO_VERDICT, Verdict, verdict_of
from palmette.score.verify import canonical, verify
from palmette.tasks.task import Question


@dataclass(frozen=True)
class MathJudge:
    """Answers are right where they equal the reference as mathematics."""

    seconds: float = 5.0
    by_answer = True

    def extract(self, solution: str) -> str | None:
        """Return the final answer of a solution, None where it holds none."""
        return extract_answer(solution)

    def canonical(self, answer: str) -> str:
        """Return a form that equal answers share."""
        return canonical(answer)

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Check an answer against the question's reference; without one there is no verdict."""
        if question.reference is None:
            return NO_VERDICT
        return verdict_of(verify(answer, extract_reference(question.reference), seconds=self.seconds))


plugin = MathJudge
