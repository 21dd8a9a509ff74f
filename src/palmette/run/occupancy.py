"""How full the ticks of a search were over time, and what its time was spent on."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from palmette.events import Occupancy, TicksOfSize

MOST_BINS = 100
_FIRST_BIN_SECONDS = 0.05
_TICKING = "policy"
"""The activity that ticks are a part of."""


@dataclass
class _Bin:
    ticks: int = 0
    rows: int = 0
    spent: dict[str, float] = field(default_factory=dict)

    def add(self, other: "_Bin") -> None:
        self.ticks += other.ticks
        self.rows += other.rows
        for activity, seconds in other.spent.items():
            self.spent[activity] = self.spent.get(activity, 0.0) + seconds


class OccupancyBins:
    """Counts ticks, rows and seconds by activity in bins of equal length, which double when there are too many.

    Activities may be nested: time counts for the innermost one. Ticks of similar size are counted together as well,
    with the policy's seconds since the tick before: what starting and ending rows took is in them. `clock` returns
    seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._zero = clock()
        self._began = round(time.time(), 3)
        self._bin_seconds = _FIRST_BIN_SECONDS
        self._bins: list[_Bin] = []
        self._open: list[str] = []
        self._since = 0.0
        self._by_size: dict[int, _Bin] = {}
        self._untold_seconds = 0.0
        """Of the policy, since its last tick."""

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Count the time of the block for an activity."""
        self._count_time()
        self._open.append(activity)
        try:
            yield
        finally:
            self._count_time()
            self._open.pop()

    def tick(self, rows: int) -> None:
        """Count one tick that sampled so many tokens, one for each row."""
        self._count_time()
        place = self._place(self._since)  # First: it may replace the bins by fewer.
        self._bins[place].add(_Bin(1, rows))
        size = self._by_size.setdefault(rows.bit_length(), _Bin())
        size.add(_Bin(1, rows, {_TICKING: self._untold_seconds}))
        self._untold_seconds = 0.0

    def event(self) -> Occupancy:
        """Return the bins so far."""
        self._count_time()
        activities = sorted({activity for each in self._bins for activity in each.spent})
        return Occupancy(
            began=self._began,
            bin_seconds=self._bin_seconds,
            ticks=tuple(each.ticks for each in self._bins),
            rows=tuple(each.rows for each in self._bins),
            spent={name: tuple(round(each.spent.get(name, 0.0), 4) for each in self._bins) for name in activities},
            by_size=tuple(
                TicksOfSize(each.ticks, each.rows, round(each.spent[_TICKING], 4))
                for _, each in sorted(self._by_size.items())
            ),
        )

    def _count_time(self) -> None:
        """Count the time since the last call for the innermost open activity, shared out among the bins it covers."""
        start, self._since = self._since, self._clock() - self._zero
        if not self._open:
            return
        if self._open[-1] == _TICKING:
            self._untold_seconds += self._since - start
        last, width = self._place(self._since), self._bin_seconds
        for place in range(int(start / width), last + 1):
            overlap = min(self._since, (place + 1) * width) - max(start, place * width)
            self._bins[place].add(_Bin(spent={self._open[-1]: max(0.0, overlap)}))

    def _place(self, moment: float) -> int:
        """Return the index of a moment's bin; adds bins up to it, and doubles all where there would be too many."""
        while moment >= MOST_BINS * self._bin_seconds:
            merged = [_Bin() for _ in range((len(self._bins) + 1) // 2)]
            for place, each in enumerate(self._bins):
                merged[place // 2].add(each)
            self._bins, self._bin_seconds = merged, 2 * self._bin_seconds
        place = int(moment / self._bin_seconds)
        self._bins += [_Bin() for _ in range(place + 1 - len(self._bins))]
        return place
