"""The simulated nodes: which are up, how fast their workers compute, when each of them is due."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from palmette.simulate.costs import Costs
from palmette.simulate.setup import Setup
from palmette.simulate.worker import Worker

Schedule = Callable[[float, str, int, int], None]


@dataclass
class _Node:
    workers: range
    speed: float = 1.0
    is_up: bool = True


class Nodes:
    """All workers, brought to the present moment before they change. `schedule` is told when a worker is due."""

    def __init__(self, setup: Setup, costs: Costs, schedule: Schedule) -> None:
        self._setup, self._schedule = setup, schedule
        self._nodes = [_Node(range(n * setup.workers, (n + 1) * setup.workers)) for n in range(setup.nodes)]
        self.workers = [Worker(index // setup.workers, costs, setup.batch_rows) for index in range(setup.all_workers)]
        self._seen = [0.0] * setup.all_workers
        self._idle_since = [0.0] * setup.all_workers
        self.now = 0.0
        self.waited_seconds = 0.0
        """How long all workers together have waited for the last one."""

    def is_up(self, worker: int) -> bool:
        """Return whether a worker's node is there."""
        return self._nodes[self.workers[worker].node].is_up

    def next_up(self, worker: int) -> int:
        """Return the next worker in turn whose node is there."""
        count = len(self.workers)
        return next(index % count for index in range(worker + 1, worker + 1 + count) if self.is_up(index % count))

    @contextmanager
    def changing(self, index: int) -> Iterator[Worker]:
        """Give a worker work or take it away; afterwards it is due anew, with all whose speed that changes."""
        self._catch_up(index)
        worker = self.workers[index]
        yield worker
        if not worker.is_busy:
            self._idle_since[index] = self.now
        node = self._nodes[worker.node]
        if self._setup.workers > self._setup.devices or self._setup.contention:
            speed = self._setup.speed(sum(self.workers[other].is_busy for other in node.workers))
            if speed != node.speed:
                for other in node.workers:
                    self._catch_up(other)
                node.speed = speed
                for other in node.workers:
                    self._due(other)
                return
        self._due(index)

    def _catch_up(self, index: int) -> None:
        worker, seen = self.workers[index], self._seen[index]
        self._seen[index] = self.now
        if worker.is_busy and self.now > seen:
            worker.work((self.now - seen) * self._nodes[worker.node].speed)

    def _due(self, index: int) -> None:
        worker = self.workers[index]
        worker.stamp += 1
        if worker.is_busy:
            moment = self.now + worker.due_seconds() / self._nodes[worker.node].speed
            self._schedule(moment, "worker", index, worker.stamp)

    def wait_for_last(self) -> None:
        """Count how long each worker has waited for the one that has just ended."""
        for index, worker in enumerate(self.workers):
            if not worker.is_busy:
                self.waited_seconds += self.now - self._idle_since[index]
        self.begin_wait()

    def begin_wait(self) -> None:
        """Forget how long workers have been idle: they waited for an update, not for each other."""
        self._idle_since = [self.now] * len(self.workers)

    def fail(self, node: int) -> range:
        """Lose a node; return its workers, which have lost everything."""
        gone = self._nodes[node]
        gone.is_up = False
        for index in gone.workers:
            self._catch_up(index)
            self.workers[index].drop()
            self.workers[index].stamp += 1
        gone.speed = 1.0
        return gone.workers

    def come_back(self, node: int) -> range:
        """Have a node again; return its workers, which are idle."""
        self._nodes[node].is_up = True
        for index in self._nodes[node].workers:
            self._seen[index] = self._idle_since[index] = self.now
        return self._nodes[node].workers
