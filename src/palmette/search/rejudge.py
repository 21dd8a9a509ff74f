"""Judges the answers of recorded trees again, with every aggregate and every vote; generates nothing."""

import math
import time
from collections.abc import Iterable
from typing import get_args

from palmette.errors import RunError
from palmette.score.judge import Judge
from palmette.search.answer import VOTES, Ballot, ballots, elect
from palmette.search.checked import CheckedJudge
from palmette.search.replay import Replay
from palmette.search.summary import Accuracy
from palmette.settings import Aggregate
from palmette.tasks.task import Question

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)


class Rejudge:
    """A judge with the questions of a task. Each distinct answer to a question is judged once and remembered.

    If the judge does not go by the answer alone (`by_answer` is False), each leaf is judged once instead.
    """

    def __init__(self, judge: Judge, questions: Iterable[Question], *, most_seconds: float = math.inf) -> None:
        """Judge for `most_seconds` in all; answers after that are not judged."""
        self._judge = CheckedJudge(judge)
        self._seconds_left = most_seconds
        self._questions = {question.id: question for question in questions}
        self._verdicts: dict[tuple[str, str | int | None], str | None] = {}

    def ballots(self, replayed: Replay, aggregate: Aggregate) -> list[Ballot]:
        """Return a ballot for each finished leaf that has an answer."""
        return ballots(replayed.tree, aggregate, self._judge.extract, self._judge.canonical)

    def knows(self, replayed: Replay) -> bool:
        """Return whether the task still has this question with the reference answer that the run recorded."""
        question = self._questions.get(replayed.started.question)
        return question is not None and question.reference == replayed.started.reference

    def outcome(self, replayed: Replay, ballot: Ballot | None) -> str | None:
        """Return the outcome of a ballot's answer; `ballot` None stands for no answer. None if it cannot be judged.

        Raises RunError if the task does not have the question any more (`knows`).
        """
        name = replayed.started.question
        if not self.knows(replayed):
            raise RunError(f"question {name!r} is no longer in the task: it has changed since the run")
        answer, leaf = (None, None) if ballot is None else (ballot.answer, ballot.leaf)
        key = name, answer if self._judge.by_answer else leaf
        if key not in self._verdicts and self._seconds_left <= 0:
            return None
        if key not in self._verdicts:
            begun = time.monotonic()
            solution = "" if leaf is None else replayed.tree.solution(leaf)
            verdict = self._judge.verdict(self._questions[name], solution, answer)
            self._verdicts[key] = verdict.outcome
            self._seconds_left -= time.monotonic() - begun
        return self._verdicts[key]


def evaluate(replays: Iterable[Replay], rejudge: Rejudge) -> dict[Aggregate, dict[str, Accuracy]]:
    """Return the accuracy of every aggregate with every vote, over the finished questions of a run."""
    outcomes: dict[Aggregate, dict[str, list[str | None]]] = {
        aggregate: {vote: [] for vote in VOTES} for aggregate in AGGREGATES
    }
    for replayed in replays:
        if replayed.finished is None:
            continue
        for aggregate in AGGREGATES:
            votes = rejudge.ballots(replayed, aggregate)
            for vote in VOTES:
                outcomes[aggregate][vote].append(rejudge.outcome(replayed, elect(votes, vote)))
    return {
        aggregate: {vote: Accuracy.of(found) for vote, found in by_vote.items()}
        for aggregate, by_vote in outcomes.items()
    }
