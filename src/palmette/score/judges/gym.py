"""Judges answers with the scorer of the reasoning-gym generator that made the question."""

from dataclasses import dataclass

from palmette.score import sandbox
from palmette.score.judge import Verdict, verdict_of
from palmette.score.verify import Outcome
from palmette.tasks.task import Question

_MARKER = "Answer:"


@dataclass(frozen=True)
class GymJudge:
    """An answer is correct if the generator's own scorer gives full points, else wrong."""

    seconds: float = 5.0
    by_answer = True

    def extract(self, solution: str) -> str | None:
        """Return everything after the last `Answer:`, which may be several lines; None without it."""
        _, marker, answer = solution.rpartition(_MARKER)
        return answer.strip(" \n\t*`") or None if marker else None

    def canonical(self, answer: str) -> str:
        """Return the answer with every run of white space replaced by one space."""
        return " ".join(answer.split())

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Return the verdict of the generator's scorer.

        The scorer runs in a worker process because some scorers evaluate answers as code.
        """
        if answer is None:
            return verdict_of(Outcome.UNPARSEABLE)
        return verdict_of(Outcome(sandbox.gym.check_gym(answer, question.key, self.seconds)))


def gym_points(question: Question, solution: str, seconds: float = 5.0) -> float | None:
    """Return the points that the generator's scorer gives to a solution, from 0 to 1, in part where it does so.

    None for a question that no generator of reasoning-gym made.
    """
    if "generator" not in question.key:
        return None
    answer = GymJudge().extract(solution)
    return 0.0 if answer is None else sandbox.gym.gym_points(answer, question.key, seconds)


plugin = GymJudge
