"""Answers of replayed trees, read and judged again, each distinct one once."""

from collections.abc import Iterable

from palmette.config import Fold
from palmette.errors import RunError
from palmette.score.judge import Judge
from palmette.search.answer import Ballot, ballots
from palmette.search.replay import Replay
from palmette.tasks.task import Question


class Referee:
    """A judge beside the questions it knows; verdicts are remembered by question and answer."""

    def __init__(self, judge: Judge, questions: Iterable[Question]) -> None:
        self._judge = judge
        self._known = {question.id: question for question in questions}
        self._verdicts: dict[tuple[str, str | None], str] = {}

    def ballots(self, one: Replay, how: Fold) -> list[Ballot]:
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
