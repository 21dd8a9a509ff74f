"""A bounded row of samples: however long it goes on, it keeps its peaks in order."""

from dataclasses import dataclass, field
from typing import NamedTuple

MOST_SAMPLES = 512


class Sample(NamedTuple):
    """Bytes held at a moment, in seconds, and the place it fell into."""

    moment: float
    held_bytes: int
    place: int | None


@dataclass
class Samples:
    """Up to `most` samples. When there are more, each two neighbors leave the larger one."""

    most: int = MOST_SAMPLES
    kept: list[Sample] = field(default_factory=list)
    _together: int = 1
    """Samples that stand behind one that is kept."""
    _waiting: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Take one more; moments must not go back."""
        self._waiting.append(sample)
        if len(self._waiting) < self._together:
            return
        self.kept.append(_larger(self._waiting))
        self._waiting = []
        if len(self.kept) > self.most:
            self.kept = [_larger(self.kept[place : place + 2]) for place in range(0, len(self.kept), 2)]
            self._together *= 2

    def all(self) -> list[Sample]:
        """Return what is kept, the newest included."""
        return [*self.kept, *([_larger(self._waiting)] if self._waiting else [])]


def _larger(samples: list[Sample]) -> Sample:
    return max(samples, key=lambda sample: sample.held_bytes)
