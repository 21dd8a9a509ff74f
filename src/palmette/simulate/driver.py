"""The simulated driver: questions that wait, and which worker gets the next one."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from palmette.simulate.setup import Setup


class Driver:
    """Hands questions to the workers with the fewest, one after the other.

    None gets more than an equal share of what is left: nobody is idle while another has questions to begin. `owners`
    are the workers that questions were dealt to beforehand, None where all workers share one queue.
    """

    def __init__(self, setup: Setup, owners: Sequence[int] | None) -> None:
        self._in_flight = setup.in_flight
        self._owners = owners
        self._held = [0] * setup.all_workers
        self._free = [(0, worker) for worker in range(setup.all_workers)]
        """Workers by how many questions they have. Older notes about a worker are void."""
        self._shared: deque[int] = deque()
        self._dealt: list[deque[int]] = [deque() for _ in range(setup.all_workers if owners is not None else 0)]
        self.waiting = 0
        self.asked = 0
        """Questions that workers have."""

    def put(self, question: int, *, first: bool = False) -> None:
        """Queue a question; `first` before those that wait."""
        queue = self._shared if self._owners is None else self._dealt[self._owners[question]]
        if first:
            queue.appendleft(question)
        else:
            queue.append(question)
        self.waiting += 1

    def next(self, is_up: Callable[[int], bool]) -> tuple[int, int] | None:
        """Return a worker and the question that it gets now, None if there is nothing to give or nobody to take it."""
        while self._free and self.waiting:
            held, worker = self._free[0]
            queue = self._shared if self._owners is None else self._dealt[worker]
            is_void = held != self._held[worker] or held >= self._in_flight or not is_up(worker) or not queue
            if not is_void and self._owners is None and held >= self._share():
                return None
            heapq.heappop(self._free)
            if is_void:
                continue
            self.waiting -= 1
            self.asked += 1
            self._note(worker, 1)
            return worker, queue.popleft()
        return None

    def ended(self, worker: int) -> None:
        """Count a question that a worker has no longer: finished, or lost."""
        self.asked -= 1
        self._note(worker, -1)

    def back(self, worker: int) -> None:
        """Take a worker into account that was gone."""
        self._note(worker, 0)

    def _note(self, worker: int, change: int) -> None:
        self._held[worker] += change
        heapq.heappush(self._free, (self._held[worker], worker))

    def _share(self) -> int:
        return math.ceil((self.waiting + self.asked) / len(self._held))
