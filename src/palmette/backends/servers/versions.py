"""Puts new weights on the servers of a policy in training, and takes old ones off."""

import asyncio
from collections.abc import Sequence

from palmette.backends.servers.client import Client, ServerError
from palmette.backends.servers.dialect import TakesVersions, Weights
from palmette.backends.servers.pool import Pool
from palmette.errors import BackendError


async def use_weights(dialect: TakesVersions, clients: Sequence[Client], pool: Pool, weights: Weights) -> None:
    """Have all servers write with these weights from now on, which they may have already.

    A server that fails is left out for a while; when it is used again it is given the weights that are the newest then.
    Raises BackendError if none is left, ConfigError if one was not started so that it takes weights.
    """
    old, dialect.weights = dialect.weights, weights
    failures: list[str] = []

    async def load(client: Client) -> None:
        try:
            await dialect.load(client, weights)
            if old is not None and old.name != weights.name:
                await _drop(dialect, client, old.name)
        except ServerError as error:
            failures.append(str(error))
            pool.leave_out(client)

    await asyncio.gather(*(load(client) for client in clients))
    if len(failures) == len(clients):
        raise BackendError("; ".join(failures))


async def drop_weights(dialect: TakesVersions, clients: Sequence[Client], beginning: str) -> None:
    """Take all weights whose names begin so off the servers, as far as these can be reached."""
    for client in clients:
        try:
            for name in await dialect.versions(client):
                if name.startswith(beginning):
                    await _drop(dialect, client, name)
        except BackendError:
            pass  # A server that is gone has no weights.


async def _drop(dialect: TakesVersions, client: Client, name: str) -> None:
    try:
        await dialect.unload(client, name)
    except ServerError:
        raise
    except BackendError:
        pass  # It was restarted meanwhile and does not have them.
