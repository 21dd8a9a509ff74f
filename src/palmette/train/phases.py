"""Phases of one update, each metered and timed."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field


@dataclass
class TimedPhases:
    """Meters phases with `phase` and keeps the seconds of each by its name."""

    phase: Callable[[str], AbstractContextManager[None]]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Run one phase; a phase of the same name adds to its seconds."""
        begun = time.monotonic()
        with self.phase(name):
            yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - begun, 3)
