"""Several servers of the same model as one: a question stays with one of them, a failed one is left out for a while."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from palmette.backends.servers.client import Client, ServerError
from palmette.errors import BackendError, ConfigError

T = TypeVar("T")
Ask = Callable[[Client], Awaitable[T]]

REST_SECONDS = 30.0
"""How long a failed server is left out before it is tried again."""

LOOK_SECONDS = 1.0
"""How often servers are looked for where none is left."""


@dataclass(eq=False)
class _Server:
    client: Client
    in_flight: int = 0
    rests_until: float = 0.0
    is_checked: bool = True


class Pool:
    """Chooses the server of each request: the one that holds the question's prefix, else the least busy one.

    `check` is awaited for a server that has failed before it is used again: it may have come back with another model.
    Where none is left, one that comes back within `return_seconds` is waited for.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        check: Ask[object],
        *,
        return_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = [_Server(client) for client in clients]
        self._check = check
        self._return_seconds = return_seconds
        self._looking = asyncio.Lock()
        self._clock = clock
        self._home: dict[str, _Server] = {}
        """The server of each question."""

    async def run(self, question: str, ask: Ask[T]) -> T:
        """Return what `ask` returns for a server; where one fails, another is asked.

        Raises BackendError if none is left, and what else `ask` raises.
        """
        failures: dict[_Server, str] = {}
        waits_until: float | None = None
        while True:
            server = self._choose(question, failures)
            if server is None:
                waits_until = self._clock() + self._return_seconds if waits_until is None else waits_until
                await self._wait_for_one(failures, waits_until)
                failures = {}
                continue
            self._home[question] = server
            server.in_flight += 1
            try:
                await self._make_sure(server)
                return await ask(server.client)
            except ServerError as error:
                failures[server] = str(error)
                self._rest(server)
            finally:
                server.in_flight -= 1

    async def _wait_for_one(self, failures: dict[_Server, str], until: float) -> None:
        """Return when a server is back. Raises BackendError where none is in time. One request looks for all."""
        async with self._looking:
            while self._clock() < until:
                for server in self._servers:
                    if server.is_checked or await self._is_back(server, failures):
                        return
                await asyncio.sleep(LOOK_SECONDS)
        waited = ""
        if self._return_seconds:
            waited = f", {self._return_seconds:g} s waited for ({self._servers[0].client.role}.return_seconds)"
        if not failures:
            addresses = ", ".join(server.client.address for server in self._servers)
            raise BackendError(f"no server is left: {addresses} failed less than {REST_SECONDS:g} s ago{waited}")
        left = "; no server is left" if len(self._servers) > 1 else ""
        raise BackendError("; ".join(failures.values()) + left + waited)

    async def _is_back(self, server: _Server, failures: dict[_Server, str]) -> bool:
        try:
            await self._make_sure(server)
        except ServerError as error:
            failures[server] = str(error)
            return False
        server.rests_until = 0.0
        return True

    def leave_out(self, client: Client) -> None:
        """Leave a server out for a while, as one that has failed."""
        for server in self._servers:
            if server.client is client:
                self._rest(server)

    def _rest(self, server: _Server) -> None:
        server.is_checked = False
        server.rests_until = self._clock() + REST_SECONDS

    def forget(self, question: str) -> None:
        """Forget which server has a question's prefix. Safe to call twice."""
        self._home.pop(question, None)

    def _choose(self, question: str, failures: dict[_Server, str]) -> _Server | None:
        now = self._clock()
        awake = [server for server in self._servers if server not in failures and server.rests_until <= now]
        home = self._home.get(question)
        return home if home in awake else min(awake, key=lambda server: server.in_flight, default=None)

    async def _make_sure(self, server: _Server) -> None:
        if server.is_checked:
            return
        try:
            await self._check(server.client)
        except ConfigError as error:
            raise ServerError(str(error)) from error
        server.is_checked = True
