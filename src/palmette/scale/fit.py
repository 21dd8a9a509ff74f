"""How many workers the nodes of a cluster have room for: a pure decision."""

from collections.abc import Sequence
from dataclasses import dataclass

from palmette.units import count_of, format_bytes

_HAIR = 1e-6
"""Shares of cores are fractions: three thirds of a core are one core."""


@dataclass(frozen=True)
class Demand:
    """What one worker is given."""

    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0

    def __str__(self) -> str:
        told = [f"{self.cpus:g} cores" if self.cpus != 1 else "1 core"]
        told += [f"{self.gpus:g} GPUs" if self.gpus != 1 else "1 GPU"] if self.gpus else []
        told += [format_bytes(self.memory_bytes)] if self.memory_bytes else []
        return ", ".join(told)


@dataclass(frozen=True)
class NodeRoom:
    """What one machine of a cluster has to give."""

    name: str
    cpus: float
    gpus: float
    memory_bytes: int

    def holds(self, demand: Demand) -> int:
        """Return how many workers of this demand the machine has room for."""
        pairs = ((self.cpus, demand.cpus), (self.gpus, demand.gpus), (self.memory_bytes, demand.memory_bytes))
        return min(int(has / wants + _HAIR) for has, wants in pairs if wants)


def most_workers(nodes: Sequence[NodeRoom], demand: Demand) -> int:
    """Return how many workers of this demand fit on all nodes together."""
    return sum(node.holds(demand) for node in nodes)


def what_there_is(nodes: Sequence[NodeRoom], most: int = 4) -> str:
    """Return what the nodes have in one line; of many only the first."""
    if not nodes:
        return "no node is alive"
    told = []
    for node in nodes[:most]:
        gpus = f", {count_of(int(node.gpus), 'GPU')}" if node.gpus else ""
        told.append(f"{node.name} ({node.cpus:g} cores{gpus}, {format_bytes(node.memory_bytes)})")
    more = [f"{len(nodes) - most} more"] if len(nodes) > most else []
    return f"{count_of(len(nodes), 'node')}: {', '.join(told + more)}"


def shortage(count: int, demand: Demand, nodes: Sequence[NodeRoom]) -> str:
    """Say why so many workers cannot be placed, and what can."""
    fits = most_workers(nodes, demand)
    advice = f"Fits: scale.workers={fits}" if fits else "Give less by scale.worker_cpus, worker_gpus or worker_memory"
    return f"{count_of(count, 'worker')} of {demand} each cannot be placed on {what_there_is(nodes)}. {advice}"
