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

from palmette.backends.backend import Expansion, Step
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
from palmette.slow_clients import PromptRequests

STRATEGIES = ("beam", "best_of_n", "dvts", "espalier", "ets", "rebase")
HOSTS = ("127.0.0.1", "localhost")
get, post, options = (partial(httpx2.request, method, timeout=None) for method in ("GET", "POST", "OPTIONS"))
"""Requests that wait as long as it takes."""


class Gate:
    """Holds back steps until a test opens it; `reached` is set as soon as one is held back."""

    def __init__(self, holds: Callable[[Expansion, str], bool]) -> None:
        self._holds = holds
        self._is_open = threading.Event()
        self.reached = threading.Event()
        self.news = threading.Event()

    def open(self) -> None:
        self._is_open.set()
        self.news.set()

    def lets(self, expansion: Expansion) -> bool:
        """Tell whether a step may be written now."""
        if self._is_open.is_set() or not self._holds(expansion, "".join(map(chr, expansion.prefix))):
            return True
        self.reached.set()
        return False


class SpellingBackend(ScriptedBackend):
    """The scripted policy with a tokenizer, of which a token is a character; interrupted as the built-in ones are."""

    def __init__(self, script: Script, gate: Gate | None = None) -> None:
        super().__init__(script)
        self.gate = gate or Gate(lambda expansion, prefix: False)
        self.started: list[Expansion] = []

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def spell(self, tokens: Sequence[int]) -> list[str]:
        return list(map(chr, tokens))

    def start(self, expansions: Sequence[Expansion]) -> None:
        self.started += expansions

    def finished(self) -> list[tuple[Expansion, Step]]:
        ready = [each for each in self.started if self.gate.lets(each)]
        if self.started and not ready:
            self.gate.news.wait()
            self.gate.news.clear()
        self.started = [each for each in self.started if each not in ready]
        return list(zip(ready, self.expand(ready), strict=True)) if ready else []

    def interrupt(self) -> None:
        self.gate.news.set()

    def release(self, question: str, nodes: Sequence[int]) -> None:
        self.started = [each for each in self.started if each.question != question or each.node not in nodes]
        super().release(question, nodes)


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
def scripted(
    script: Script, score: Callable[..., float] | None = None, gate: Gate | None = None, **told: Any
) -> Iterator[Served]:
    """Serve a script; `score` is a function as users write them, of `step` for example."""
    scorer = None if score is None else make_scorer(score)
    with gateway_with(SpellingBackend(script, gate), scorer, **told) as served:
        yield served


@contextmanager
def listening(app: Any, http: type[PromptRequests] = PromptRequests) -> Iterator[str]:
    """Run an application on a free port of loopback, in a thread; give its address."""
    server = _Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="auto", http=http, ws="none"))
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


def sums(expansion: Expansion, prefix: str) -> str:
    """Write two lines, then an answer that depends on the seed: 7, 8 or 9. Goes on where a line was cut. Asked 2+2."""
    *lines, begun = prefix.removeprefix("2+2").split("\n")
    if len(lines) < 2:
        words, rest = f"step {len(lines)} of ", f"{expansion.seed % 97}\n"
    else:
        words, rest = "so \\boxed{", f"{7 + expansion.seed % 3}}}$"
    return (words + rest)[len(begun) :] if len(begun) <= len(words) else rest[-1] if rest[-1] == "\n" else "}$"
