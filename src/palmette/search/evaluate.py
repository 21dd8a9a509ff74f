"""Every fold with every vote, again, from a run's trees: nothing is generated."""

from collections.abc import Iterable
from typing import get_args

from palmette.config import Fold
from palmette.errors import RunError
from palmette.score.judge import Judge
from palmette.search.answer import VOTES, ballots, elect
from palmette.search.replay import Replay
from palmette.search.summary import Accuracy
from palmette.tasks.task import Question

FOLDS: tuple[Fold, ...] = get_args(Fold)


def evaluate(told: Iterable[Replay], questions: Iterable[Question], judge: Judge) -> dict[Fold, dict[str, Accuracy]]:
    """Return the accuracy of each fold and vote over the finished questions of a run."""
    known = {question.id: question for question in questions}
    outcomes: dict[Fold, dict[str, list[str]]] = {how: {vote: [] for vote in VOTES} for how in FOLDS}
    for one in told:
        if one.finished is None:
            continue
        question = known.get(one.started.question)
        if question is None or question.reference != one.started.reference:
            raise RunError(f"question {one.started.question!r} is no longer in the task: it has changed since the run")
        verdicts: dict[str | None, str] = {}
        for how in FOLDS:
            cast = ballots(one.tree, how, judge.extract, judge.canonical)
            for vote in VOTES:
                answer = elect(cast, vote)
                if answer not in verdicts:
                    verdicts[answer] = judge.outcome(question, answer).value
                outcomes[how][vote].append(verdicts[answer])
    return {how: {vote: _accuracy(found) for vote, found in by_vote.items()} for how, by_vote in outcomes.items()}


def _accuracy(found: list[str]) -> Accuracy:
    return Accuracy(found.count("correct"), len(found), {outcome: found.count(outcome) for outcome in set(found)})
