"""Answers of recorded trees judged again, with every aggregate and every vote: nothing is generated."""

from collections.abc import Iterable
from typing import get_args

from palmette.config import Aggregate
from palmette.errors import RunError
from palmette.score.judge import Judge
from palmette.search.answer import VOTES, Ballot, ballots, elect
from palmette.search.replay import Replay
from palmette.search.summary import Accuracy
from palmette.tasks.task import Question


class Rejudge:
    """A judge beside the questions it knows; verdicts are remembered by question and answer."""

    def __init__(self, judge: Judge, questions: Iterable[Question]) -> None:
        self._judge = judge
        self._known = {question.id: question for question in questions}
        self._verdicts: dict[tuple[str, str | None], str] = {}

    def ballots(self, one: Replay, how: Aggregate) -> list[Ballot]:
        """Read the answers of a tree's finished leaves."""
        return ballots(one.tree, how, self._judge.extract, self._judge.canonical)

    def knows(self, one: Replay) -> bool:
        """Tell whether the question is still what it was when the tree grew."""
        question = self._known.get(one.started.question)
        return question is not None and question.reference == one.started.reference

    def outcome(self, one: Replay, answer: str | None) -> str:
        """Judge an answer to the tree's question. Raises RunError where the question is not known any more."""
        if not self.knows(one):
            raise RunError(f"question {one.started.question!r} is no longer in the task: it has changed since the run")
        key = one.started.question, answer
        if key not in self._verdicts:
            self._verdicts[key] = self._judge.outcome(self._known[one.started.question], answer).value
        return self._verdicts[key]


FOLDS: tuple[Aggregate, ...] = get_args(Aggregate)


def evaluate(told: Iterable[Replay], referee: Rejudge) -> dict[Aggregate, dict[str, Accuracy]]:
    """Return the accuracy of each fold and vote over the finished questions of a run."""
    outcomes: dict[Aggregate, dict[str, list[str]]] = {how: {vote: [] for vote in VOTES} for how in FOLDS}
    for one in told:
        if one.finished is None:
            continue
        for how in FOLDS:
            cast = referee.ballots(one, how)
            for vote in VOTES:
                outcomes[how][vote].append(referee.outcome(one, elect(cast, vote)))
    return {how: {vote: _accuracy(found) for vote, found in by_vote.items()} for how, by_vote in outcomes.items()}


def _accuracy(found: list[str]) -> Accuracy:
    return Accuracy(found.count("correct"), len(found), {outcome: found.count(outcome) for outcome in set(found)})
