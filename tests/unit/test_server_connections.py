"""Connections to servers: few are made at a time, and what comes over them is told in one line, whatever it is."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from palmette.backends.blocking import expand_all
from palmette.backends.servers import client
from palmette.backends.servers.client import Client, RefusedError, ServerError
from palmette.errors import BackendError
from tests.dialects import Manner, serving
from tests.served import backend_of, step

PLACES = 32


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.001)


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many connections were being made as each one began, this one included."""
    seen: list[int] = []
    now = 0
    connect: Callable[..., Awaitable[Any]] = anyio.connect_tcp

    async def counted(*given: Any, **named: Any) -> Any:
        nonlocal now
        now += 1
        seen.append(now)
        try:
            await asyncio.sleep(0.001)  # All that may connect at the same time do.
            return await connect(*given, **named)
        finally:
            now -= 1

    monkeypatch.setattr(anyio, "connect_tcp", counted)
    return seen


def test_of_many_requests_at_once_few_connect_at_a_time_and_all_are_answered(connecting: list[int]) -> None:
    # Answers come late, so that every request has a connection of its own.
    with serving(Manner("vllm", spread_seconds=0.5)) as [server], backend_of(server, rows=200) as backend:
        connecting.clear()
        steps = [step(number, prefix=f"{number}?\n") for number in range(1, 201)]
        assert len(expand_all(backend, steps)) == 200
    assert len(connecting) > 2 * PLACES
    assert max(connecting) == PLACES


def test_a_server_that_is_gone_is_found_by_those_who_connect_and_told_to_those_who_wait(connecting: list[int]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"

        async def ask() -> list[Any]:
            asked = Client(address, answer_seconds=600, connections=300)
            try:
                return await asyncio.gather(*(asked.get("/x") for _ in range(300)), return_exceptions=True)
            finally:
                await asked.close()

        found = asyncio.run(ask())
    assert all(isinstance(error, ServerError) for error in found)
    assert all(str(error).endswith(", 3 times in a row") for error in found)
    # 300 requests of three attempts each would be 900 connections, and hours at a host that never answers.
    assert len(connecting) <= 300


@contextmanager
def saying(reply: bytes) -> Iterator[str]:
    """An address at which every request gets these bytes, and then the end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(65_536)
                        connection.sendall(reply)
                    except OSError:
                        pass  # It hung up before the end.

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    told = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, told, len(body), body)


@pytest.mark.parametrize(
    ("reply", "kind", "line"),
    [
        (answer(b'\xff\xfe\x80{"a"'), ServerError, "what is no JSON: '\ufffd\ufffd\ufffd{\"a\"'"),
        (answer(b'{"a": ' + b"9" * 6000 + b"}"), ServerError, 'what is no JSON: \'{"a": 9999'),
        (answer(b"\x1f\x8b\x08\x00", b"200 OK", b"content-encoding: gzip"), ServerError, "what is no JSON"),
        (
            answer(b"", b"302 Found", b"location: file:///etc/passwd"),
            RefusedError,
            "status 302: it redirects to 'file:///etc/passwd', which is not followed: give the address of the server",
        ),
        (answer(b"", b"308 Moved", b"location: http://10.0.0.9/v1\x1b[2J"), ServerError, "broke off at /v1/x: "),
        (answer(b"gone", b"301 Moved"), RefusedError, "status 301: gone"),
        (answer(b"\x1b]0;title\x07 bad", b"400 Bad"), RefusedError, "status 400:  ]0;title  bad"),
        (answer(b"{}", b"500 \xff\xfe"), ServerError, "status 500: {}"),
        (b"\x00\x01 garbage\r\n\r\n", ServerError, "broke off at /v1/x: illegal status line"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 2**20, ServerError, "broke off at /v1/x: Receive buffer too long"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}", ServerError, "broke off at /v1/x: bad Content-Length"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n",
            ServerError,
            "broke off at /v1/x: illegal chunk header",
        ),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", ServerError, "broke off at /v1/x: "),
        (b"", ServerError, "broke off at /v1/x: Server disconnected without sending a response., 3 times in a row"),
    ],
)
def test_what_no_server_should_say_is_one_line(reply: bytes, kind: type[BackendError], line: str) -> None:
    async def ask(address: str) -> None:
        asked = Client(address, answer_seconds=600, connections=1)
        try:
            await asked.post("/v1/x", {})
        finally:
            await asked.close()

    with saying(reply) as address, pytest.raises(kind) as caught:
        asyncio.run(ask(address))
    told = str(caught.value)
    assert line in told
    assert told.isprintable() and len(told) < 500 and told.startswith(address)
