"""Connects to a Ray cluster, or starts one on this machine; what goes wrong is told in one line."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from palmette.errors import BackendError, ConfigError
from palmette.scale.fit import NodeRoom
from palmette.scale_settings import ScaleSettings
from palmette.units import describe_error, format_seconds, one_line

_OBJECT_STORE_BYTES = 128 * 2**20
"""What Ray of this machine alone may keep of messages: ours are texts, and the least that Ray allows is 75 MiB."""

Ray = Any
"""The module `ray`: only processes that scale import it."""


class _Connection:
    """How many blocks of this process are inside of `connected`."""

    blocks = 0


@contextmanager
def connected(settings: ScaleSettings, cpus: float, more_store_bytes: int = 0) -> Iterator[Ray]:
    """Connect to the cluster at `scale.address`, or start one here with so many cores, and leave or end it afterwards.

    One that is started here can hold `more_store_bytes` beside messages. A second block of this process shares the
    connection of the first; the last one to end ends it. Raises ConfigError where Ray is not installed, BackendError
    where there is no cluster or it is of another version.
    """
    if find_spec("ray") is None:
        raise ConfigError("scale.workers and scale.address need Ray: pip install 'palmette[scale]'")
    added = {} if _Connection.blocks else _environment(settings)
    os.environ.update(added)
    try:
        import ray

        if not _Connection.blocks:
            if ray.is_initialized():
                raise ConfigError("this process is connected to Ray already: call ray.shutdown() first")
            _initialize(ray, settings, cpus, _OBJECT_STORE_BYTES + more_store_bytes)
        _Connection.blocks += 1
        try:
            yield ray
        finally:
            _Connection.blocks -= 1
            if not _Connection.blocks:
                ray.shutdown()
    finally:
        for name in added:
            os.environ.pop(name, None)


def _environment(settings: ScaleSettings) -> dict[str, str]:
    """Return what Ray is told by environment variables, without those that the user has set.

    Ray of this machine alone listens on the loopback interface, and only to those who have its token; its workers are
    no nicer to other processes than this one is, while by default Ray adds 15 to their niceness.
    """
    told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if settings.address is None:
        told |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
        told |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_worker_niceness": "0"}
    return {name: value for name, value in told.items() if name not in os.environ}


def _initialize(ray: Ray, settings: ScaleSettings, cpus: float, store_bytes: int) -> None:
    options: dict[str, Any] = {
        "address": settings.address or "local",
        "log_to_driver": False,
        "logging_level": "CRITICAL",
    }
    if settings.address is None:
        options |= {"num_cpus": cpus, "object_store_memory": store_bytes, "include_dashboard": False}
    what = "start Ray on this machine" if settings.address is None else f"reach a Ray cluster at {settings.address}"
    try:
        if settings.address not in (None, "auto"):
            _knock(settings.address.removeprefix("ray://"), settings.start_seconds)
        ray.init(**options)
    except Exception as error:
        raise BackendError(f"cannot {what}: {_reason(error)}") from error


def _knock(address: str, seconds: float) -> None:
    """Wait until a server of Ray's protocol answers at HOST:PORT. Ray's own attempts take minutes over a wrong one."""
    import grpc

    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=seconds)
    except grpc.FutureTimeoutError:
        raise ConnectionError(
            f"what listens there did not speak Ray's protocol within {format_seconds(seconds)} (scale.start_seconds)"
        ) from None
    finally:
        channel.close()


def _reason(error: BaseException) -> str:
    """Return why Ray could not be reached, in words of ours where we know it."""
    told = str(error)
    if "ersion mismatch" in told:
        return f"it has another version of Ray or Python: {one_line(told, 300)}"
    if "uthentication" in told or "UNAUTHENTICATED" in told:
        return "it wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's (ray get-auth-token)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}. Start one with: ray start --head"
    return describe_error(error)


def node_rooms(ray: Ray) -> list[NodeRoom]:
    """Return what each living node of the cluster has in all, by its host's name."""
    found = []
    for node in ray.nodes():
        if node.get("Alive"):
            has = node.get("Resources", {})
            name = one_line(str(node.get("NodeManagerHostname") or node.get("NodeManagerAddress")), 80)
            memory = int(has.get("memory", 0))
            found.append(NodeRoom(name, float(has.get("CPU", 0)), float(has.get("GPU", 0)), memory))
    return found
