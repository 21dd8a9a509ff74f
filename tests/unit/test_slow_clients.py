"""Clients that take too long to send a request are dropped; those whose request has arrived are not."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from palmette.slow_clients import PromptRequests
from tests.gateway import listening

pytestmark = pytest.mark.unit
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"


class Hurried(PromptRequests):
    request_seconds = 0.05


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    while scope["type"] == "http" and (await receive()).get("more_body"):
        pass


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n{}"], ids=["nothing", "half a head", "half a body"])
def test_a_request_that_does_not_arrive_is_dropped(sent: bytes) -> None:
    with listening(read_all, Hurried) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(sent)
            assert client.recv(100) == b""  # Waits until the other side closes.


class _Clock(asyncio.AbstractEventLoop):
    """A loop whose times come when the test says so."""

    def __init__(self) -> None:
        self.limits: list[tuple[Any, asyncio.TimerHandle]] = []

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = asyncio.TimerHandle(delay, callback, args, self)
        self.limits.append((callback, handle))
        return handle

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: Any) -> None:
        pass

    def create_task(self, coroutine: Any, **_: Any) -> Any:
        coroutine.close()
        return asyncio.Future(loop=self)

    def ring(self) -> None:
        """Let all times come that were not cancelled."""
        for callback, handle in self.limits:
            if not handle.cancelled():
                callback()


class _Line(asyncio.Transport):
    """A connection that remembers whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("sent", "closed"), [(HEAD, True), (HEAD + b"\r\n{}", True), (HEAD + b"\r\n{  }", False)])
def test_a_request_that_has_arrived_may_take_as_long_as_it_takes(sent: bytes, closed: bool) -> None:
    clock, line = _Clock(), _Line()
    protocol = PromptRequests(uvicorn.Config(read_all), ServerState(), {}, clock)
    protocol.connection_made(line)
    for place in range(len(sent)):
        protocol.data_received(sent[place : place + 1])
    clock.ring()
    assert line.is_closed is closed
