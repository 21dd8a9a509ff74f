"""Clients that take too long to send a request are dropped; those whose request has arrived are not."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast
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


class _Limit:
    """A time that comes when the test says so, unless it was cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback, self.is_cancelled = callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Task:
    def add_done_callback(self, callback: Any) -> None:
        """Nothing is ever done."""


class _Clock:
    """As much of an event loop as a connection uses; requests that have arrived are never answered."""

    def __init__(self) -> None:
        self.limits: list[_Limit] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Limit:
        self.limits.append(_Limit(callback))
        return self.limits[-1]

    def create_task(self, coroutine: Any) -> _Task:
        coroutine.close()
        return _Task()

    def ring(self) -> None:
        """Let all times come that were not cancelled."""
        for limit in self.limits:
            if not limit.is_cancelled:
                limit.callback()


class _Line(asyncio.Transport):
    """A connection that remembers whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("sent", "closed"), [(HEAD, True), (HEAD + b"\r\n{}", True), (HEAD + b"\r\n{  }", False)])
def test_a_request_that_has_arrived_may_take_as_long_as_it_takes(sent: bytes, closed: bool) -> None:
    clock, line = _Clock(), _Line()
    protocol = PromptRequests(uvicorn.Config(read_all), ServerState(), {}, cast(Any, clock))
    protocol.connection_made(line)
    for place in range(len(sent)):
        protocol.data_received(sent[place : place + 1])
    clock.ring()
    assert line.is_closed is closed
