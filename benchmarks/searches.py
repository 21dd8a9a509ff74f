"""Searches with a chosen backend, and the time in which that backend wrote steps."""

import time
from collections.abc import Sequence

from palmette import Searcher
from palmette.backends.backend import Backend, Expansion, Message, Step
from palmette.backends.blocking import as_started
from palmette.backends.local import LocalBackend
from palmette.run.parts import Parts, load_embedder, load_scorer
from palmette.settings import Config
from palmette.tasks.load import load_task


class Timed:
    """A backend that keeps what it wrote, and counts the seconds of its calls and the KV it held after each."""

    def __init__(self, backend: Backend) -> None:
        self._backend = as_started(backend)
        self.kv_bytes_per_token, self.context_tokens = backend.kv_bytes_per_token, backend.context_tokens
        self.tokens, self.seconds = 0, 0.0
        self.steps: list[tuple[int, ...]] = []
        self.peak_kv_bytes = 0

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self._backend.calls

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens."""
        return self._backend.encode(messages)

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Forget what is kept for these nodes."""
        self._backend.release(question, nodes)

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Take these expansions."""
        self._backend.start(expansions)

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Grow steps by the clock."""
        begun = time.perf_counter()
        done = self._backend.finished()
        self.seconds += time.perf_counter() - begun
        self.tokens += sum(len(step.tokens) for _, step in done)
        self.steps += [step.tokens for _, step in done]
        if isinstance(self._backend, LocalBackend):
            self.peak_kv_bytes = max(self.peak_kv_bytes, self._backend.tree.cache.pool.taken_bytes)
        return done


def searched(config: Config, backend: Backend) -> Timed:
    """Search all questions; return what the backend wrote."""
    timed = Timed(backend)
    uses = config.search.build_strategy().uses
    embedder = load_embedder(config.embedder, config.reward.device) if "clusters" in uses else None
    with Searcher(config=config, parts=Parts(timed, load_scorer(config.reward), embedder)) as searcher:
        searcher.search(load_task(config.task))
    return timed
