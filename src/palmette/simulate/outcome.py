"""What a simulated run came to: its length, how busy its workers were, what failed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One simulated run. Seconds are those of a clock on the wall, from the first question to the last."""

    workers: int
    questions: int
    seconds: float
    question_seconds: tuple[float, ...]
    """How long each question took from when a worker got it, in the order they ended."""
    busy_seconds: float
    """Work of all workers together, each as if on a device of its own."""
    capacity: float
    """Workers that can compute at full speed at a time."""
    tail_seconds: float
    """How long a worker waited on average for the last one, at the end or before each update."""
    ticks: float
    sizes: tuple[Mapping[int, Sequence[float]], ...]
    """Ticks and lanes by size of ticks, for each worker; see `Worker.sizes`."""
    prefill_tokens: int
    failures: int = 0
    lost_questions: int = 0
    update_seconds: tuple[float, ...] = ()
    learner_seconds: float = 0.0

    @property
    def utilisation(self) -> float:
        """The share of the time that workers computed, of all that could at a time."""
        return self.busy_seconds / (self.capacity * self.seconds) if self.seconds else 0.0

    @property
    def per_question(self) -> float:
        """Seconds of the run for each of its questions."""
        return self.seconds / max(1, self.questions)

    @property
    def per_update(self) -> float | None:
        """Seconds from one update to the next; None without a learner."""
        return statistics.fmean(self.update_seconds) if self.update_seconds else None

    @property
    def tail_share(self) -> float:
        """The share of the workers' time that went into waiting for the last one."""
        return self.tail_seconds / self.seconds if self.seconds else 0.0

    def quantile(self, share: float) -> float:
        """Return how long a question took at this share of all, the shortest first."""
        return quantile(self.question_seconds, share)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value at this share of the values, the smallest first; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
