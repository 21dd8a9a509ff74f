"""What a server on this machine says of itself: whether it is well, what it serves, how many KV tokens it has."""

import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import TypeVar

from palmette.backends.servers import identity
from palmette.backends.servers.client import Client, require_httpx
from palmette.backends.servers.loop_thread import LoopThread
from palmette.errors import BackendError
from palmette.launch.command import ServerCommand

_ANSWER_SECONDS = 10.0
T = TypeVar("T")


def is_port_taken(command: ServerCommand) -> bool:
    """Tell whether somebody listens at the address."""
    with socket.socket() as tried:
        tried.settimeout(_ANSWER_SECONDS)
        return tried.connect_ex(("127.0.0.1", command.port)) == 0


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def is_well(command: ServerCommand) -> bool:
    """Tell whether the server says that it is ready."""
    try:
        _ask(command, lambda client: client.get_text("/health"))
    except BackendError:
        return False
    return True


def served_models(command: ServerCommand) -> Mapping[str, str] | None:
    """Return the model behind every name that the server at the address has, None where it does not tell."""
    try:
        return _ask(command, lambda client: identity.served_models(command.engine, client))
    except BackendError:
        return None


def kv_tokens(command: ServerCommand) -> int | None:
    """Return how many tokens the server's KV cache has, None where it does not tell."""
    try:
        return _ask(command, lambda client: identity.kv_tokens(command.engine, client))
    except BackendError:
        return None


def is_same_model(asked: str, served: Mapping[str, str]) -> bool:
    """Tell whether a server has the asked model, by its name or a folder of the same name."""
    last = PurePath(asked).name.casefold()
    return any(
        asked in (name, model) or last in (PurePath(name).name.casefold(), PurePath(model).name.casefold())
        for name, model in served.items()
    )


def _ask(command: ServerCommand, question: Callable[[Client], Awaitable[T]]) -> T:
    require_httpx()
    client = Client(command.address, answer_seconds=_ANSWER_SECONDS, connections=1)
    loop = LoopThread([client])

    async def asked() -> T:
        return await question(client)

    try:
        return loop.wait_for(asked())
    finally:
        loop.close()
