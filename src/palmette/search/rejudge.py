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

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)


class Rejudge:
    """A judge beside the questions it knows; a verdict is remembered by question and answer, or by leaf."""

    def __init__(self, judge: Judge, questions: Iterable[Question]) -> None:
        self._judge = judge
        self._known = {question.id: question for question in questions}
        self._verdicts: dict[tuple[str, str | int | None], str | None] = {}

    def ballots(self, one: Replay, aggregate: Aggregate) -> list[Ballot]:
        """Read the answers of a tree's finished leaves."""
        return ballots(one.tree, aggregate, self._judge.extract, self._judge.canonical)

    def knows(self, one: Replay) -> bool:
        """Tell whether the question is still what it was when the tree grew."""
        question = self._known.get(one.started.question)
        return question is not None and question.reference == one.started.reference

    def outcome(self, one: Replay, ballot: Ballot | None) -> str | None:
        """Judge an answer to the tree's question. Raises RunError where the question is not known any more."""
        if not self.knows(one):
            raise RunError(f"question {one.started.question!r} is no longer in the task: it has changed since the run")
        answer, leaf = (None, None) if ballot is None else (ballot.answer, ballot.leaf)
        key = one.started.question, answer if self._judge.by_answer else leaf
        if key not in self._verdicts:
            solution = "" if leaf is None else one.tree.solution(leaf)
            verdict = self._judge.verdict(self._known[one.started.question], solution, answer)
            self._verdicts[key] = verdict.outcome
        return self._verdicts[key]


def evaluate(told: Iterable[Replay], rejudge: Rejudge) -> dict[Aggregate, dict[str, Accuracy]]:
    """Return the accuracy of each aggregate and vote over the finished questions of a run."""
    outcomes: dict[Aggregate, dict[str, list[str | None]]] = {
        aggregate: {vote: [] for vote in VOTES} for aggregate in AGGREGATES
    }
    for one in told:
        if one.finished is None:
            continue
        for aggregate in AGGREGATES:
            cast = rejudge.ballots(one, aggregate)
            for vote in VOTES:
                outcomes[aggregate][vote].append(rejudge.outcome(one, elect(cast, vote)))
    return {
        aggregate: {vote: Accuracy.of(found) for vote, found in by_vote.items()}
        for aggregate, by_vote in outcomes.items()
    }
