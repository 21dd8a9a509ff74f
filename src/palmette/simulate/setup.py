"""What is simulated: nodes with their workers, how questions reach them, failures, a learner."""

from dataclasses import dataclass
from typing import Literal

from palmette.errors import ConfigError

Routing = Literal["affine", "spread"]
ROUTINGS: tuple[Routing, Routing] = ("affine", "spread")


def read_routing(text: str) -> Routing:
    """Return the routing of this name. Raises ConfigError for any other."""
    for routing in ROUTINGS:
        if text == routing:
            return routing
    raise ConfigError(f"routing {text!r}: choose {' or '.join(ROUTINGS)}")


def other_routing(routing: Routing) -> Routing:
    """Return the one that this one is not."""
    return "spread" if routing == "affine" else "affine"


@dataclass(frozen=True)
class Learner:
    """A learner beside the workers. `seconds` are those of one update by itself, the sending of weights included.

    Rollouts may be generated with weights that are `staleness` updates old. `nodes` fail as those of workers do.
    """

    seconds: tuple[float, ...]
    questions: int
    updates: int
    staleness: int = 0
    nodes: int = 1


@dataclass(frozen=True)
class Setup:
    """Equal nodes with equal workers.

    `devices` is how many workers of a node compute at a time; more of them share it. Each of those slows every other
    down by the share `contention`: they share memory and caches. `in_flight` is how
    many questions a worker has at a time, `batch_rows` how many lanes a tick has at the most. The driver takes
    `dispatch_seconds` for each question, one after the other. With `spread` routing each step goes to the next worker
    in turn, not to the one that holds its question's prefixes. A node fails `failures_per_hour` times an hour and is
    back after `repair_seconds`.
    """

    nodes: int = 1
    workers: int = 1
    """Workers of a node."""
    devices: int = 1
    contention: float = 0.0
    in_flight: int = 16
    batch_rows: int = 512
    routing: Routing = "affine"
    dispatch_seconds: float = 0.0
    failures_per_hour: float = 0.0
    repair_seconds: float = 300.0

    @property
    def all_workers(self) -> int:
        """Workers of all nodes."""
        return self.nodes * self.workers

    def speed(self, busy: int) -> float:
        """Return how fast each of so many busy workers of a node computes: 1 as if it were alone."""
        computing = max(1, min(busy, self.devices))
        return computing / max(1, busy) / (1 + self.contention * (computing - 1))
