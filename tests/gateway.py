"""A gateway on loopback for tests, with a policy that is a script: no model, no waiting for times."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import uvicorn
from openai import OpenAI

from palmette.backends.backend import Expansion
from palmette.backends.scripted import Script, ScriptedBackend
from palmette.config import load_config
from palmette.memory.meter import Meter
from palmette.run.parts import Parts
from palmette.run.watch import Watch
from palmette.score.scorer import Scorer, make_scorer
from palmette.serve.asking.names import ModelNames
from palmette.serve.bounds import Bounds
from palmette.serve.gateway import Gateway
from palmette.serve.searching.shared_engine import SharedEngine
from palmette.serve.web.app import make_app

STRATEGIES = ("beam", "best_of_n", "dvts", "espalier", "ets", "rebase")
HOSTS = ("127.0.0.1", "localhost")
get, post, options = (partial(each, timeout=None) for each in (httpx2.get, httpx2.post, httpx2.options))
"""Requests that wait as long as it takes."""


class SpellingBackend(ScriptedBackend):
    """The scripted policy with a tokenizer: a token is a character."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def spell(self, tokens: Sequence[int]) -> list[str]:
        return list(map(chr, tokens))


@dataclass(frozen=True)
class Served:
    """A gateway that listens, and what tests look at behind it."""

    url: str
    gateway: Gateway
    backend: Any
    key: str | None

    def client(self, **told: Any) -> OpenAI:
        """Return OpenAI's own client, which tries nothing twice."""
        given = {"api_key": self.key or "none", "max_retries": 0, "timeout": None, **told}
        return OpenAI(base_url=f"{self.url}/v1", **given)


@contextmanager
def gateway_with(
    backend: Any,
    scorer: Scorer | None = None,
    *,
    key: str | None = None,
    bounds: Bounds | None = None,
    kv_tokens: int | None = None,
    **search: Any,
) -> Iterator[Served]:
    """Serve a backend under the name `script`."""
    told = {f"search.{name}": value for name, value in {"width": 4, "total_tokens": 200, **search}.items()}
    config = load_config(None, {"policy.model": "seedling", **told})
    with Meter() as meter:
        parts = Parts(backend, scorer)
        engine = SharedEngine(parts, Watch(meter, config.memory, backend, scorer), 64)
        gateway = Gateway(config, engine, ModelNames("script", STRATEGIES), bounds or Bounds(), kv_tokens)
        try:
            with listening(make_app(gateway, key, HOSTS)) as url:
                yield Served(url, gateway, backend, key)
        finally:
            gateway.close()


@contextmanager
def scripted(script: Script, score: Callable[..., float] | None = None, **told: Any) -> Iterator[Served]:
    """Serve a script; `score` is a function as users write them, of `step` for example."""
    scorer = None if score is None else make_scorer(score)
    with gateway_with(SpellingBackend(script), scorer, **told) as served:
        yield served


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Run an application on a free port of loopback, in a thread; give its address."""
    server = _Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="on", http="h11", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        server.ready.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class Gate:
    """Lets a script stop at a step until a test has seen it there."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, text: str) -> str:
        self.reached.set()
        self.open.wait()
        return text


def sums(expansion: Expansion, prefix: str) -> str:
    """Write two lines, then an answer that depends on the seed: 7, 8 or 9. Goes on where a line was cut. Asked 2+2."""
    *lines, begun = prefix.removeprefix("2+2").split("\n")
    if len(lines) < 2:
        words, rest = f"step {len(lines)} of ", f"{expansion.seed % 97}\n"
    else:
        words, rest = "so \\boxed{", f"{7 + expansion.seed % 3}}}$"
    return (words + rest)[len(begun) :] if len(begun) <= len(words) else rest[-1] if rest[-1] == "\n" else "}$"
