"""Judges answers by the reasoning-gym generator that made the question."""

from dataclasses import dataclass

from palmette.score import sandbox
from palmette.score.judge import Verdict, verdict_of
from palmette.score.verify import Outcome
from palmette.tasks.task import Question

_MARKER = "Answer:"


@dataclass(frozen=True)
class GymJudge:
    """Full marks of the generator's own scorer are right, less is wrong."""

    seconds: float = 5.0
    by_answer = True

    def extract(self, solution: str) -> str | None:
        """Return what follows the last `Answer:`; answers may run over several lines."""
        _, marker, answer = solution.rpartition(_MARKER)
        return answer.strip(" \n\t*`") or None if marker else None

    def canonical(self, answer: str) -> str:
        """Return the answer with each run of white space as one space."""
        return " ".join(answer.split())

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Ask the generator's scorer, in the worker: some of them evaluate what they are given."""
        if answer is None:
            return verdict_of(Outcome.UNPARSEABLE)
        return verdict_of(Outcome(sandbox.gym.check_gym(answer, question.key, self.seconds)))


plugin = GymJudge
