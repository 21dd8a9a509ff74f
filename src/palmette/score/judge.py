"""Who decides whether an answer is right: math-verify, or the scorer that a generator brings along."""

from dataclasses import dataclass

from palmette.score import sandbox
from palmette.score.extract import extract_answer, extract_reference
from palmette.score.verify import Outcome, canonical, verify
from palmette.tasks.task import Question

_MARKER = "Answer:"


@dataclass(frozen=True)
class MathJudge:
    """Judges answers as mathematics."""

    seconds: float

    def extract(self, solution: str) -> str | None:
        """Return the final answer of a solution, None where it holds none."""
        return extract_answer(solution)

    def canonical(self, answer: str) -> str:
        """Return a form that equal answers share."""
        return canonical(answer)

    def outcome(self, question: Question, answer: str | None) -> Outcome:
        """Check an answer against the question's reference."""
        return verify(answer, extract_reference(question.reference), seconds=self.seconds)


@dataclass(frozen=True)
class GymJudge:
    """Judges answers by the reasoning-gym generator that made the question; full marks are right, less is wrong."""

    seconds: float

    def extract(self, solution: str) -> str | None:
        """Return what follows the last `Answer:`; answers may run over several lines."""
        _, marker, answer = solution.rpartition(_MARKER)
        return answer.strip(" \n\t*`") or None if marker else None

    def canonical(self, answer: str) -> str:
        """Return the answer with its white space folded."""
        return " ".join(answer.split())

    def outcome(self, question: Question, answer: str | None) -> Outcome:
        """Ask the generator's scorer, in the worker: some of them evaluate what they are given."""
        if answer is None:
            return Outcome.UNPARSEABLE
        return Outcome(sandbox.gym.check_gym(answer, question.key, self.seconds))


Judge = MathJudge | GymJudge
