"""Several servers as one: a failed one is left out for a while, and checked before it is used again."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from palmette.backends.servers.client import Client, ServerError
from palmette.backends.servers.pool import REST_SECONDS, Pool
from palmette.errors import BackendError, ConfigError


class Asked:
    """Servers that fail while their name is in `dead`; remembers who was asked."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.answered: list[str] = []
        self.checked: list[str] = []
        self.now = 0.0

    async def __call__(self, server: Client) -> str:
        if server.address in self.dead:
            raise ServerError(f"{server.address} is down")
        self.answered.append(server.address)
        return server.address

    async def check(self, server: Client) -> None:
        self.checked.append(server.address)
        if server.address == "changed":
            raise ConfigError("another model")


def pool_of(asked: Asked, *addresses: str) -> Pool:
    clients = [Client(address, answer_seconds=1, connections=1) for address in addresses]
    return Pool(clients, asked.check, clock=lambda: asked.now)


@pytest.fixture
def run() -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


def test_a_failed_server_is_left_out_for_a_while_and_checked_before_it_is_used_again(run: Any) -> None:
    asked = Asked()
    pool = pool_of(asked, "a", "b")
    assert run(pool.run("q", asked)) == "a"
    asked.dead = {"a"}
    assert run(pool.run("q", asked)) == "b" and run(pool.run("r", asked)) == "b"
    asked.dead = {"b"}
    with pytest.raises(BackendError, match="^b is down; no server is left$"):
        run(pool.run("q", asked))
    with pytest.raises(BackendError, match="no server is left: a, b failed less than 30 s ago"):
        run(pool.run("q", asked))
    asked.now = REST_SECONDS
    assert run(pool.run("q", asked)) == "a" and asked.checked[-1] == "a"
    assert run(pool.run("q", asked)) == "a" and asked.checked == ["b", "a"]


def test_a_server_that_comes_back_with_another_model_is_left_out(run: Any) -> None:
    asked = Asked()
    pool = pool_of(asked, "changed", "b")
    asked.dead = {"changed"}
    assert run(pool.run("q", asked)) == "b"
    asked.now, asked.dead = REST_SECONDS, {"b"}
    with pytest.raises(BackendError, match="^b is down; another model; no server is left$"):
        run(pool.run("q", asked))


def test_where_no_server_is_left_one_that_comes_back_in_time_is_waited_for(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    looks: list[float] = []

    async def passed(seconds: float) -> None:
        looks.append(asked.now)
        asked.now += 10
        if asked.now >= 40:
            asked.dead.clear()

    async def check(server: Client) -> None:
        if server.address in asked.dead:
            raise ServerError(f"{server.address} is starting")

    monkeypatch.setattr(asyncio, "sleep", passed)
    clients = [Client(address, answer_seconds=1, connections=1) for address in ("a", "b")]
    pool = Pool(clients, check, return_seconds=100, clock=lambda: asked.now)

    async def two() -> list[str]:
        return list(await asyncio.gather(pool.run("q", asked), pool.run("r", asked)))

    asked.dead = {"a", "b"}
    assert set(run(two())) <= {"a", "b"} and len(asked.answered) == 2
    assert looks == [0, 10, 20, 30]  # One request looks for all.
    pool = Pool(clients, check, return_seconds=20, clock=lambda: asked.now)
    asked.now, asked.dead = 0.0, {"a", "b"}
    told = r"^a is starting; b is starting; no server is left, 20 s waited for \(policy\.return_seconds\)$"
    with pytest.raises(BackendError, match=told):
        run(pool.run("q", asked))
    assert asked.now == 20


def test_a_server_that_is_well_but_fails_every_request_is_not_asked_for_ever(run: Any) -> None:
    asked = Asked()
    pool = Pool([Client("a", answer_seconds=1, connections=1)], asked.check, return_seconds=5, clock=lambda: asked.now)

    async def fail(server: Client) -> str:
        asked.now += 1
        raise ServerError("broken")

    with pytest.raises(BackendError, match=r"^broken, 5 s waited for \(policy\.return_seconds\)$"):
        run(pool.run("q", fail))
    assert 5 <= asked.now <= 7
