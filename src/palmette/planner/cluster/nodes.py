"""A cluster as people write it: `16 nodes x 8x80GiB`, equal machines with equal GPUs."""

import re
from dataclasses import dataclass, replace

from palmette.errors import ConfigError
from palmette.planner.devices import Device, parse_devices, written_size
from palmette.units import count_of

_NODES = re.compile(r"\s*(\d{1,9})\s*nodes?\s*(?:x|of)\s*(.+)", re.IGNORECASE | re.ASCII)
_MOST_NODES = 1024


@dataclass(frozen=True)
class Cluster:
    """Equal machines. `node` has the devices of one: its GPUs, then its host where that was declared."""

    nodes: int
    node: tuple[Device, ...]

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs of one node."""
        return tuple(device for device in self.node if device.kind == "cuda")

    @property
    def devices(self) -> int:
        """What can run a model: all GPUs, or all hosts where there are none."""
        return self.nodes * max(1, len(self.gpus))

    def with_nodes(self, nodes: int) -> "Cluster":
        """Return a cluster of so many of the same machines."""
        return replace(self, nodes=nodes)

    def __str__(self) -> str:
        own = [f"{len(self.gpus)}x{written_size(self.gpus[0])}"] if self.gpus else []
        own += [f"cpu:{written_size(device)}" for device in self.node if device.kind == "cpu"]
        return f"{count_of(self.nodes, 'node')} x {','.join(own)}"


def is_cluster(text: str | None) -> bool:
    """Return whether a text declares nodes, not the devices of one machine."""
    return text is not None and re.search(r"node", text, re.IGNORECASE) is not None


def parse_cluster(text: str) -> Cluster:
    """Return the cluster that a text declares. Raises ConfigError where it cannot be read."""
    match = _NODES.fullmatch(text)
    if match is None:
        raise ConfigError(f"devices {text[:80]!r} cannot be read: write a cluster like '16 nodes x 8x80GiB'")
    nodes = int(match[1])
    if not 0 < nodes <= _MOST_NODES:
        raise ConfigError(f"devices {text[:80]!r}: a cluster has 1 to {_MOST_NODES:,} nodes")
    cluster = Cluster(nodes, parse_devices(match[2]))
    if len({device.total_bytes for device in cluster.gpus}) > 1:
        raise ConfigError(f"devices {text[:80]!r}: the GPUs of a node have to be equal, like '{nodes} nodes x 8x80GiB'")
    return cluster
