"""The simulated learner: which update is next, when it may begin, how long it takes."""

import random

from palmette.errors import RunError
from palmette.simulate.setup import Learner, Setup

_HOUR = 3600.0
_MOST_FAILURES = 1000


class Learning:
    """Updates one after the other, each with the questions that were finished first and not learned from yet."""

    def __init__(self, learner: Learner, setup: Setup, source: random.Random) -> None:
        self._learner, self._setup, self._random = learner, setup, source
        self._is_learning = False
        self._version = 0
        self._published = 0.0
        self.update_seconds: list[float] = []
        self.seconds = 0.0
        self.failures = 0

    @property
    def is_done(self) -> bool:
        """Whether all updates are made."""
        return self._version >= self._learner.updates

    @property
    def may_ask(self) -> int:
        """How many questions may be asked with the present weights, those that were asked before among them."""
        ahead = self._version + 1 + self._learner.staleness
        return min(self._learner.updates, ahead) * self._learner.questions

    def begin(self, finished: int) -> float | None:
        """Begin the next update if enough questions are finished; return how long it takes, None if it cannot begin.

        An update whose node fails is made again from the last weights. Raises RunError where none would ever end.
        """
        if self._is_learning or self.is_done or finished < (self._version + 1) * self._learner.questions:
            return None
        self._is_learning = True
        seconds = self._random.choice(self._learner.seconds)
        rate = self._setup.failures_per_hour * self._learner.nodes / _HOUR
        taken, failed = 0.0, 0
        while rate and (lived := self._random.expovariate(rate)) < seconds:
            taken, failed = taken + lived + self._setup.repair_seconds, failed + 1
            if failed == _MOST_FAILURES:
                raise RunError(
                    f"{self._setup.failures_per_hour:g} failures per hour of a node never let an update end, which "
                    f"takes {seconds:.3g} s on {self._learner.nodes} nodes. Give fewer failures"
                )
        self.failures += failed
        self.seconds += taken + seconds
        return taken + seconds

    def end(self, now: float) -> None:
        """Publish the weights of the update."""
        self._is_learning = False
        self._version += 1
        self.update_seconds.append(now - self._published)
        self._published = now
