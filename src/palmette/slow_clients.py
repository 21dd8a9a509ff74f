"""HTTP by uvicorn for clients that may be slow or hostile: a request that does not arrive in time is dropped.

A server lets in only so many connections. Without a limit of time, as many clients that send a byte now and then, or
nothing at all, would keep everybody else out.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PromptRequests(H11Protocol):
    """Closes a connection whose request has not arrived whole, head and body, in `request_seconds`."""

    request_seconds = 30.0
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read what has arrived; stop the clock when a request is whole, start it with the next one."""
        super().data_received(data)
        if self._is_whole():
            self._stop()
        elif self._limit is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop()
        super().connection_lost(exc)

    def _is_whole(self) -> bool:
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _wait(self) -> None:
        self._limit = self.loop.call_later(self.request_seconds, self._drop)

    def _stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _drop(self) -> None:
        self._limit = None
        if not self._is_whole():
            self.transport.close()
