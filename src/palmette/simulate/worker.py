"""One simulated worker: rows that end after so many ticks, and seconds of other work before the next tick."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from palmette.simulate.costs import Costs


@dataclass
class Worker:
    """Counts work in seconds of its own device: how fast these pass is up to its node."""

    node: int
    costs: Costs
    batch_rows: int
    pending_seconds: float = 0.0
    """Work before the next tick: scoring, prompts, judging."""
    rows: int = 0
    lanes: int = 0
    """Different texts among the rows: what a tick runs the model on."""
    sizes: dict[int, list[float]] = field(default_factory=dict)
    """Ticks and lanes of ticks of similar size: those whose rows have so many binary digits."""
    ticks: float = 0.0
    counted_ticks: float = 0.0
    busy_seconds: float = 0.0
    stamp: int = 0
    """Which of its scheduled events is the newest; all others are void."""
    closing: list[int] = field(default_factory=list)
    """Questions that end when the other work is done."""
    _ends: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Ticks at which rows end or part from others: (tick, question, how many end, change of lanes)."""
    _waiting: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """Rows for which the tick has no place yet: (tokens, shared ticks, question, how many)."""

    @property
    def is_busy(self) -> bool:
        """Whether it has anything to do."""
        return bool(self._ends) or bool(self.closing) or self.pending_seconds > 0

    def add(self, question: int, tokens: int, count: int, shared: int = 0) -> None:
        """Take so many rows of so many tokens, which have no lanes of their own for so many ticks."""
        self._waiting.append((tokens, shared, question, count))
        self._fill()

    def due_seconds(self) -> float:
        """Return the work until rows end, or until the other work is done where that ends a question."""
        if self.closing:
            return self.pending_seconds
        ticks = self._ends[0][0] - self.ticks if self._ends else 0.0
        return self.pending_seconds + max(0.0, ticks) * self.costs.tick(self.rows, self.lanes)

    def work(self, seconds: float) -> None:
        """Do so many seconds of work, at most `due_seconds`."""
        self.busy_seconds += seconds
        first = min(seconds, self.pending_seconds)
        self.pending_seconds -= first
        if self._ends:
            self._tick((seconds - first) / (self.costs.tick(self.rows, self.lanes) or 1.0))

    def _tick(self, ticks: float) -> None:
        self.ticks += ticks
        self.counted_ticks += ticks
        size = self.sizes.setdefault(self.rows.bit_length(), [0.0, 0.0])
        size[0] += ticks
        size[1] += ticks * self.lanes

    def settle(self) -> None:
        """Do what rounding has left of the work that is due."""
        self.pending_seconds = 0.0
        if self._ends and not self.closing:
            self.ticks = max(self.ticks, self._ends[0][0])

    def ended(self) -> list[tuple[int, int]]:
        """Return the rows that have ended since the last call: (question, how many)."""
        done = []
        while self._ends and self._ends[0][0] <= self.ticks:
            _, question, count, change = heapq.heappop(self._ends)
            self.rows -= count
            self.lanes += change
            if count:
                done.append((question, count))
        self._fill()
        return done

    def drop(self) -> None:
        """Lose everything."""
        self._ends.clear()
        self._waiting.clear()
        self.closing.clear()
        self.rows, self.lanes, self.pending_seconds = 0, 0, 0.0

    def _fill(self) -> None:
        while self._waiting and (self.lanes < self.batch_rows or self._waiting[0][1]):
            tokens, shared, question, count = self._waiting.popleft()
            now = count if shared else min(count, self.batch_rows - self.lanes)
            end, is_lane = max(1, tokens), shared < max(1, tokens)
            heapq.heappush(self._ends, (self.ticks + end, question, now, -now if is_lane else 0))
            if shared and is_lane:
                heapq.heappush(self._ends, (self.ticks + shared, question, 0, now))
            self.rows += now
            self.lanes += 0 if shared else now
            if now < count:
                self._waiting.appendleft((tokens, shared, question, count - now))
