"""Which worker has which questions: handed out, taken back from one that is lost, never asked twice at once."""

import math
from collections import Counter, deque
from collections.abc import Iterable


class Shares:
    """The questions of a run by id. `in_flight` is how many a worker searches at once.

    A question that is taken back goes before those that wait, so that a run's oldest questions end first.
    """

    def __init__(self, questions: Iterable[str], in_flight: int) -> None:
        self._waiting = deque(questions)
        self._in_flight = in_flight
        self._held: dict[str, list[str]] = {}
        self.losses: Counter[str] = Counter()
        """How many workers were lost with each question."""

    @property
    def is_done(self) -> bool:
        """Whether every question is finished."""
        return not self._waiting and not any(self._held.values())

    def of(self, worker: str) -> tuple[str, ...]:
        """Return the questions that a worker has and has not finished."""
        return tuple(self._held.get(worker, ()))

    def take(self, worker: str, workers: int) -> list[str]:
        """Return the next questions for a worker, one of `workers` that share what is left.

        One more than it searches at once, so that it never waits for us; at the end of a run an equal share, so that
        nobody is idle while another has questions that it has not begun.
        """
        held = self._held.setdefault(worker, [])
        left = len(self._waiting) + sum(map(len, self._held.values()))
        most = min(self._in_flight + 1, math.ceil(left / max(1, workers)))
        taken = [self._waiting.popleft() for _ in range(min(most - len(held), len(self._waiting)))]
        held += taken
        return taken

    def finished(self, worker: str, question: str) -> bool:
        """Count a question as finished; return False for one that this worker does not have."""
        if question not in self._held.get(worker, ()):
            return False
        self._held[worker].remove(question)
        return True

    def lost(self, worker: str) -> list[str]:
        """Take back what a lost worker has not finished, to be asked again; return it."""
        taken_back = self._held.pop(worker, [])
        self.losses.update(taken_back)
        self._waiting.extendleft(reversed(taken_back))
        return taken_back
