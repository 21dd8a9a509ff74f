"""A backend on loopback servers, with the fake policy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from palmette.backends.backend import Expansion
from palmette.backends.openai import OpenaiDialect
from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.policy import Policy
from palmette.backends.sglang import SglangDialect
from palmette.backends.step_text import StepText
from palmette.backends.vllm import VllmDialect
from palmette.settings import PolicySettings
from tests.dialects import Dialect
from tests.fake_policy import END, FakeTokenizer

DIALECTS: dict[str, Callable[[Policy], Any]] = {"vllm": VllmDialect, "sglang": SglangDialect, "openai": OpenaiDialect}


@contextmanager
def backend_at(*addresses: str, dialect: str = "vllm", rows: int = 64, **settings: Any) -> Iterator[ServedBackend]:
    told = PolicySettings(**{"model": "fake", **settings})
    policy = Policy(told, FakeTokenizer(), frozenset({END}), "/elsewhere/fake")
    backend = ServedBackend(
        DIALECTS[dialect](policy),
        policy.tokenizer,
        StepText(FakeTokenizer(), policy.end_tokens),
        addresses=addresses,
        kv_bytes_per_token=4,
        answer_seconds=told.answer_seconds,
        most_in_flight=rows,
    )
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def backend_of(*servers: Dialect, **settings: Any) -> Iterator[ServedBackend]:
    addresses = [server.address for server in servers]
    with backend_at(*addresses, dialect=servers[0].manner.dialect, **settings) as backend:
        yield backend


def step(number: int = 1, *, prefix: str = "x?\n", **changed: Any) -> Expansion:
    return replace(Expansion("x", 0, tuple(FakeTokenizer().encode(prefix)), number, 12, number), **changed)
