"""Rollouts of coming updates: made when they are needed, or as many updates before that as weights may be old."""

from collections import deque

from palmette.settings import Aggregate, TrainSettings
from palmette.train.phases import TimedPhases
from palmette.train.rollout.rolled import Rolled, roll_out
from palmette.train.training_parts import Progress, TrainingParts


class Ahead:
    """Rollouts in the order of their updates. With a staleness of k, those of update n are written by weights n - k.

    Which weights write what depends on the numbers of updates alone, never on time: a run repeats exactly. One that
    goes on from a checkpoint writes the next k rollouts anew, with the weights of the checkpoint.
    """

    def __init__(self, parts: TrainingParts, settings: TrainSettings, *, seed: int, aggregate: Aggregate) -> None:
        self.seed = seed
        self._parts = parts
        self._settings = settings
        self._aggregate = aggregate
        self._rolled: deque[tuple[Rolled, TimedPhases]] = deque()
        self._update = self._position = 0
        """Of the rollouts that come after those that are made: the number of their update, their first question."""

    def take(self, progress: Progress) -> tuple[Rolled, TimedPhases]:
        """Return the rollouts of the next update; before that, give the newest weights to who generates."""
        if not self._rolled:
            self._update, self._position = progress.update, progress.position
        publishing = TimedPhases(self._parts.phase)
        if self._parts.publish is not None:
            with publishing("rollout"):
                self._parts.publish()
        for _ in range(len(self._rolled), max(1, self._parts.staleness)):
            self.add(progress)
        rolled, timed = self._rolled.popleft()
        assert progress.update - rolled.version <= self._parts.staleness, "rollouts of one update more are asked for"
        for name, seconds in publishing.seconds.items():
            timed.seconds[name] = round(timed.seconds[name] + seconds, 3)
        return rolled, timed

    def add(self, progress: Progress) -> None:
        """Make the rollouts of one update more, with the weights after `progress.update`; none after the last one."""
        if self._update >= self._settings.updates:
            return
        timed = TimedPhases(self._parts.phase)
        with timed("rollout"):
            rolled = roll_out(
                self._parts,
                self._settings,
                update=self._update,
                position=self._position,
                version=progress.update,
                seed=self.seed,
                aggregate=self._aggregate,
            )
        self._update, self._position = self._update + 1, rolled.position
        self._rolled.append((rolled, timed))
