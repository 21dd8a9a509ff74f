"""Lets a few requests at a time connect to a server, and all that wait learn of a connection that failed.

The time limit of a connection goes on while other requests of the same event loop are prepared. Two thousand at once on
a busy machine exceed it, though the server took every connection.
"""

import asyncio
from typing import Any

_PLACES = 32
_CONNECTED = ".send_request_headers.started"
"""The end of the name of what happens first on a connection, be it new or used before."""


class UnreachableError(Exception):
    """The connection that failed while this request waited for its turn. Its attempt counts as one of this request."""


class Gate:
    """The gate before one server, in the event loop in which it is used first."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_PLACES)
        self._failures = 0
        self._fault = ""

    async def enter(self) -> "Passage":
        """Wait for a turn to connect. Raises UnreachableError if the last connection tried meanwhile has failed."""
        before = self._failures
        await self._places.acquire()
        if self._fault and self._failures != before:
            self._places.release()
            raise UnreachableError(self._fault)
        return Passage(self)

    def leave(self, fault: str | None) -> None:
        """Make room for the next one. `fault` is why this one could not connect, "" if it did, None if it gave up."""
        self._places.release()
        if fault is not None:
            self._fault = fault
        if fault:
            self._failures += 1


class Passage:
    """A request on its way to a connection. Who has one leaves it at last; leaving it twice is safe."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate

    async def follow(self, name: str, _: dict[str, Any]) -> None:
        """Leave where the request has its connection: for the extension `trace` of the HTTP library."""
        if name.endswith(_CONNECTED):
            self.leave("")

    def leave(self, fault: str | None = None) -> None:
        """See `Gate.leave`."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(fault)
