"""One rank: joins the others, holds its part of the learner, does what the driver asks for. Runs in its own process."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from palmette import __version__
from palmette.errors import BackendError
from palmette.memory.heap import map_large_blocks
from palmette.memory.host import numbers
from palmette.scale.learning.sharded_learner import ShardedLearner
from palmette.scale.learning.weight_parcel import Parcel, pack
from palmette.train.checkpoints.shard_files import write_shards
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult


@dataclass(frozen=True)
class Place:
    """What a rank is told of itself: its number, how many there are, its threads, its device, how long it may wait.

    If `is_local`, all ranks are on this machine, and talk by its loopback interface alone.
    """

    rank: int
    ranks: int
    threads: int
    device: str
    wait_seconds: float
    is_local: bool = False


BuildLearner = Callable[[DeviceMesh], ShardedLearner]
"""Loads a model and returns its learner, the same on every rank."""


class Rank:
    """What the driver calls, by the names of methods, on all ranks at once.

    `version` and `open_store`, on rank 0 alone, come first, then `join`, `build`, then anything in any order.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store: TCPStore | None = None
        self._mesh: DeviceMesh | None = None
        self._learner: ShardedLearner | None = None
        self._step_bytes = 0
        torch.set_num_threads(place.threads)
        # Gathered layers come and go: a heap that keeps their memory made a rank 2.7 times as large as what it holds.
        map_large_blocks()
        if place.is_local:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    def version(self) -> str:
        """Return the version of palmette that runs here."""
        return __version__

    def open_store(self) -> tuple[str, int]:
        """Open what ranks find each other by; return host and port. Called on rank 0."""
        host = "127.0.0.1" if self._place.is_local else _own_address()
        listening = socket.create_server((host, 0))  # By itself the store would listen on all interfaces.
        port = int(listening.getsockname()[1])
        self._store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._wait(),
            master_listen_fd=listening.detach(),
        )
        return host, port

    def join(self, host: str, port: int) -> None:
        """Wait until all ranks are here. Raises BackendError with those that are missing after `wait_seconds`."""
        place = self._place
        if self._store is None:
            self._store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=self._wait())
        _meet(self._store, place)
        kind = "cuda" if place.device.startswith("cuda") else "cpu"
        if kind == "cuda":
            torch.cuda.set_device(place.device)
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            store=PrefixStore("palmette", self._store),
            rank=place.rank,
            world_size=place.ranks,
            timeout=self._wait(),
        )
        self._mesh = init_device_mesh(kind, (place.ranks,))

    def build(self, build: BuildLearner) -> dict[str, Any]:
        """Load the model and shard it; return where this rank is and what it holds in bytes."""
        assert self._mesh is not None
        before = _anonymous_bytes()
        self._learner = build(self._mesh)
        self._learner.before_step = lambda: self._measure(before)
        return {"pid": os.getpid(), "host": socket.gethostname(), "held_bytes": self._learner.held_bytes()}

    def update(
        self, samples: Sequence[Sample], micro_batch_tokens: int, on_policy: bool, learning_rate: float | None
    ) -> UpdateResult:
        """Make one optimizer step together with the other ranks."""
        assert self._learner is not None
        return self._learner.update(
            samples, micro_batch_tokens=micro_batch_tokens, on_policy=on_policy, learning_rate=learning_rate
        )

    def weights(self, version: int) -> Parcel | None:
        """Gather the trained weights; rank 0 returns them when all ranks are done with that."""
        assert self._learner is not None
        whole = self._learner.gathered()
        dist.barrier()  # Not before all have their part in the gathering behind them may anything else go on.
        return pack(whole, version) if self._place.rank == 0 else None

    def save(self, folder: str) -> None:
        """Write this rank's shards of what the next updates depend on into a folder that all ranks share."""
        assert self._learner is not None
        write_shards(Path(folder), self._learner.shards())

    def memory(self) -> dict[str, int]:
        """Return what this rank holds in bytes: as counted, as measured before the last step, its process at most.

        Measured is what its process holds more than before it has loaded anything, in host memory.
        """
        assert self._learner is not None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {**self._learner.held_bytes(), "measured": self._step_bytes, "process_peak": peak}

    def _measure(self, before: int) -> None:
        self._step_bytes = _anonymous_bytes() - before

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _wait(self) -> timedelta:
        """Return how long to wait for other ranks: less than the driver does, so that it hears who waited in vain."""
        return timedelta(seconds=0.8 * self._place.wait_seconds)


def _meet(store: Store, place: Place) -> None:
    """Say that this rank is here; wait for all others, and name those that do not come."""
    store.set(f"here/{place.rank}", "yes")
    until = time.monotonic() + 0.8 * place.wait_seconds
    missing = list(range(place.ranks))
    while missing := [rank for rank in missing if not store.check([f"here/{rank}"])]:
        if time.monotonic() > until:
            named = ", ".join(map(str, missing))
            raise BackendError(
                f"rank {place.rank} has waited {place.wait_seconds:g} s for the others to join: {named} of "
                f"{place.ranks} ranks did not"
            )
        time.sleep(0.02)


def _anonymous_bytes() -> int:
    """Return the memory of this process that is no file's; 0 on other systems than Linux."""
    return numbers(Path("/proc/self/status")).get("RssAnon:", 0) * 1024


def _own_address() -> str:
    """Return the address under which other machines reach this one, that of loopback where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # An address for documentation: nothing is sent, a route is looked up.
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
