"""The order in which training asks its questions: shuffled passes over all of them, a pure function of a seed."""

import random
from collections.abc import Sequence
from functools import lru_cache

from palmette.tasks.task import Question


class QuestionOrder:
    """An endless sequence of questions: one pass after the other, each in another order.

    Which question comes when depends on the seed and the position alone: a run that was stopped has to remember nothing
    but its position.
    """

    def __init__(self, questions: Sequence[Question], seed: int) -> None:
        self._questions = questions
        self._seed = seed
        self._pass = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        """Return the number of questions of one pass."""
        return len(self._questions)

    def take(self, position: int, count: int) -> tuple[list[Question], int]:
        """Return `count` different questions from this position on, and the position after them.

        A question that comes twice, at the end of one pass and the beginning of the next, is taken once. Raises
        ValueError if there are fewer than `count` questions.
        """
        if count > len(self._questions):
            raise ValueError(f"{count} different questions of {len(self._questions)}")
        taken: dict[str, Question] = {}
        while len(taken) < count:
            number, place = divmod(position, len(self._questions))
            question = self._pass(number)[place]
            taken.setdefault(question.id, question)
            position += 1
        return list(taken.values()), position

    def _shuffled(self, number: int) -> list[Question]:
        shuffled = list(self._questions)
        random.Random(f"{self._seed} {number}").shuffle(shuffled)
        return shuffled
