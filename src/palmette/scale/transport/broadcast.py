"""Weights by a broadcast of torch.distributed: over gloo between CPUs, over nccl between GPUs.

A group of processes is made for each sending and ended after it, so that one that is lost spoils no other sending.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import json
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from palmette.errors import BackendError
from palmette.scale.learning.weight_parcel import Parcel
from palmette.units import describe_error, format_seconds


class BroadcastSender:
    """Rank 0 of each group; a ticket tells a receiver where to join it, and as which rank.

    `host` is the address of this machine that receivers reach. `device` is that of the weights on all sides: a GPU of
    this process for nccl.
    """

    def __init__(self, host: str, *, device: str = "cpu", wait_seconds: float) -> None:
        self._host = host
        self._device = device
        self._wait_seconds = wait_seconds
        self._content = torch.zeros(0, dtype=torch.uint8)
        self._store: Store | None = None
        self._receivers = 0

    def load(self, parcel: Parcel) -> None:
        """See `Sender`."""
        self._content = parcel.content.to(self._device)

    def tickets(self, count: int) -> list[str]:
        """See `Sender`. Opens what the group finds itself by."""
        listening = socket.create_server((self._host, 0))  # By itself the store would listen on all interfaces.
        port = int(listening.getsockname()[1])
        self._store = TCPStore(
            self._host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=self._wait_seconds),
            master_listen_fd=listening.detach(),
        )  # fmt: skip
        self._receivers = count
        meeting = {"host": self._host, "port": port, "size": count + 1, "seconds": self._wait_seconds}
        meeting["backend"] = _backend(self._content)
        return [json.dumps({**meeting, "rank": rank}) for rank in range(1, count + 1)]

    def deliver(self) -> str:
        """See `Sender`: join the group that the last tickets are for, and broadcast."""
        assert self._store is not None, "tickets come first"
        try:
            _broadcast(self._content, self._store, 0, self._receivers + 1, self._wait_seconds)
        except (RuntimeError, BackendError) as error:
            return describe_error(error)
        finally:
            self._store = None
        return ""


def receive(ticket: str, size_bytes: int, device: str = "cpu") -> torch.Tensor:
    """Join the group that a ticket names; return what is broadcast, in host memory. `device` is used for nccl.

    Raises BackendError, with who is missing, if it does not come in time.
    """
    told = json.loads(ticket)
    wait = timedelta(seconds=told["seconds"])
    content = torch.empty(size_bytes, dtype=torch.uint8, device=device if told["backend"] == "nccl" else "cpu")
    try:
        store = TCPStore(told["host"], told["port"], is_master=False, wait_for_workers=False, timeout=wait)
        _broadcast(content, store, told["rank"], told["size"], told["seconds"])
    except RuntimeError as error:
        raise BackendError(f"the weights did not come by broadcast: {describe_error(error)}") from error
    return content.cpu()


def _broadcast(content: torch.Tensor, store: Store, rank: int, size: int, seconds: float) -> None:
    """Make a group with all others of a sending, broadcast from rank 0, and leave it when all have everything."""
    _meet(store, rank, size, seconds)
    wait = timedelta(seconds=seconds)
    if _is_local(store):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        _backend(content), store=PrefixStore("weights", store), rank=rank, world_size=size, timeout=wait
    )
    try:
        dist.broadcast(content, 0)
        dist.barrier()  # The store is with rank 0: it stays until the last one is done.
    finally:
        dist.destroy_process_group()


def _backend(content: torch.Tensor) -> str:
    return "nccl" if content.device.type == "cuda" else "gloo"


def _is_local(store: Store) -> bool:
    """Return whether a group is on this machine alone."""
    return isinstance(store, TCPStore) and store.host in ("127.0.0.1", "localhost", "::1")


def _meet(store: Store, rank: int, size: int, seconds: float) -> None:
    """Say that this rank is here; wait for all others. Raises BackendError with those that are missing."""
    store.set(f"here/{rank}", "yes")
    until = time.monotonic() + seconds
    missing = list(range(size))
    while missing := [each for each in missing if not store.check([f"here/{each}"])]:
        if time.monotonic() > until:
            named = ", ".join("the sender" if each == 0 else f"receiver {each}" for each in missing)
            raise BackendError(f"{named} of {size - 1} receivers did not join within {format_seconds(seconds)}")
        time.sleep(0.01)
