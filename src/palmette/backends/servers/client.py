"""One server over HTTP: pooled connections, time limits, bounded retries, every fault told in one line.

BackendError
├── ServerError    the server cannot be reached, gave up or talks nonsense: another one may do the same work
└── RefusedError   the server refuses a request: others would refuse it too
"""

import asyncio
import json
import os
import random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from palmette.backends.servers.gate import Gate, UnreachableError
from palmette.backends.servers.health import Health
from palmette.backends.servers.told import SHOWN_CHARACTERS, cause_of, message_of, redirect_of
from palmette.errors import BackendError
from palmette.units import describe_error, one_line

if TYPE_CHECKING:
    import httpx2

API_KEY = "PALMETTE_API_KEY"
"""The environment variable with the key that servers ask for; in a config it would be recorded with the run."""

_PASSING = (429, 502, 503, 504)
"""Statuses of a server, or of a proxy before it, that is busy or starting. Every request here is safe to repeat."""

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.25
_CONNECT_SECONDS = 30.0  # Of 2,000 connections at once a server takes the last ones late.
_IDLE_SECONDS = 3.0  # vLLM closes connections that are idle for 5 s: one should not be used at that moment.
_HEALTH_SECONDS = 30.0
_MOST_ANSWER_BYTES = 64 * 2**20
_MOST_ERROR_BYTES = 2**16
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ServerError(BackendError):
    """A server that cannot be reached, gave up, or returned what cannot be read."""


class RefusedError(BackendError):
    """A request that a server refuses, with the status of its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _PassingError(Exception):
    """A fault that may be gone at the next attempt."""


class Client:
    """Asks one server, of which the settings of `role` tell. Belongs to the event loop in which it is used first."""

    def __init__(self, address: str, *, answer_seconds: float, connections: int, role: str = "policy") -> None:
        self.address = address
        self.role = role
        self._answer_seconds = answer_seconds
        self._connections = connections
        self._made: httpx2.AsyncClient | None = None
        self._gate = Gate()
        self._health = Health(self._look)
        self.answers = 0
        """How many requests to write were answered so far."""

    async def get(self, path: str) -> Any:
        """Return the JSON at a path. Raises ServerError or BackendError, as `post` does."""
        return self._parsed(path, await self._asked("GET", path, None))

    async def get_text(self, path: str) -> str:
        """Return the text at a path. Raises ServerError or BackendError, as `post` does."""
        return (await self._asked("GET", path, None)).decode(errors="replace")

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON of an answer.

        Connection errors and the statuses of a busy server are tried again, with pauses. Raises ServerError where
        that does not help, RefusedError where the server refuses the request: others would refuse it too.
        """
        data = await self._health.while_well(self._asked("POST", path, body))
        self.answers += 1
        return self._parsed(path, data)

    async def tell(self, path: str, body: dict[str, Any]) -> None:
        """Send what has no answer but that it was done. Raises as `post` does."""
        await self._health.while_well(self._asked("POST", path, body))

    async def _look(self) -> None:
        """Raise ServerError if the server cannot be reached any more or says that it is ill; it may be slow to answer.

        A server without this path is taken for well.
        """
        try:
            await asyncio.wait_for(self._asked("GET", "/health", None), _HEALTH_SECONDS)
        except ServerError:
            raise
        except (asyncio.TimeoutError, BackendError):
            pass

    async def close(self) -> None:
        """Close all connections."""
        if self._made is not None:
            await self._made.aclose()

    async def _asked(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        told = ""
        for attempt in range(_ATTEMPTS):
            if attempt:  # The jitter keeps thousands of branches from coming back at the same moment.
                await asyncio.sleep(_PAUSE_SECONDS * 2**attempt * (0.5 + random.random()))
            try:
                return await asyncio.wait_for(self._once(method, path, body), self._answer_seconds)
            except _PassingError as error:
                told = str(error)
            except asyncio.TimeoutError:
                raise ServerError(
                    f"{self.address} did not answer {path} within {self._answer_seconds:g} s "
                    f"({self.role}.answer_seconds)"
                ) from None
        raise ServerError(f"{self.address} {told}, {_ATTEMPTS} times in a row")

    async def _once(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        import httpx2

        if self._made is None:
            self._made = self._new_client()
        try:
            passage = await self._gate.enter()
        except UnreachableError as error:
            raise _PassingError(str(error)) from None
        followed = {"trace": passage.follow}
        try:
            async with self._made.stream(method, self.address + path, json=body, extensions=followed) as response:
                is_right = response.status_code == 200
                data = await self._read(response, _MOST_ANSWER_BYTES if is_right else _MOST_ERROR_BYTES)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            told = f"cannot be reached: {cause_of(error)}"
            passage.leave(told)
            raise _PassingError(told) from error
        except httpx2.TransportError as error:
            raise _PassingError(f"broke off at {path}: {cause_of(error)}") from error
        except (httpx2.InvalidURL, UnicodeError) as error:
            told = f"{self.role}.address {one_line(self.address, 200)}: {describe_error(error)}"
            raise BackendError(told) from error
        finally:
            passage.leave()
        if is_right and len(data) > _MOST_ANSWER_BYTES:
            raise ServerError(f"{self.address} answered {path} with more than {_MOST_ANSWER_BYTES} bytes")
        if is_right:
            return data
        told = f"answered {path} with status {response.status_code}: {redirect_of(response) or message_of(data)}"
        if response.status_code in _PASSING:
            raise _PassingError(told)
        # A server that is being stopped answers 500 to all requests in flight; another one can take them.
        if response.status_code >= 500:
            raise ServerError(f"{self.address} {told}")
        raise RefusedError(f"{self.address} {told}", response.status_code)

    async def _read(self, response: "httpx2.Response", most_bytes: int) -> bytes:
        """Return the body, or its beginning: one more byte than `most_bytes` tells that there is more."""
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk[: most_bytes + 1 - len(data)]
            if len(data) > most_bytes:
                break
        return bytes(data)

    def _new_client(self) -> "httpx2.AsyncClient":
        import httpx2

        # Compressed answers would have no limit to their size.
        headers = {"accept-encoding": "identity"}
        if key := os.environ.get(API_KEY, "").strip():
            if not (key.isascii() and key.isprintable()):  # The HTTP library would show it in its error.
                raise BackendError(f"{API_KEY} has characters that no HTTP header can have")
            headers["authorization"] = f"Bearer {key}"
        return httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(
                max_connections=self._connections,
                max_keepalive_connections=self._connections,
                keepalive_expiry=_IDLE_SECONDS,
            ),
            trust_env=urlsplit(self.address).hostname not in _LOOPBACK,  # No proxy can reach this machine's loopback.
        )

    def _parsed(self, path: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            text = one_line(data[: 4 * SHOWN_CHARACTERS].decode(errors="replace"), SHOWN_CHARACTERS)
            raise ServerError(f"{self.address} answered {path} with what is no JSON: {text!r}") from None


def require_httpx() -> None:
    """Raise BackendError where the HTTP library is not installed."""
    try:
        import httpx2  # noqa: F401
    except ImportError as error:
        raise BackendError("models on servers need httpx2: pip install 'palmette[servers]'") from error
