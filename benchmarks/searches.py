"""Searches with a chosen backend, and the time in which that backend wrote steps."""

import time
from collections.abc import Sequence

from palmette.backends.backend import Backend, Expansion, Message, Step
from palmette.config import Config
from palmette.run import STRATEGIES, load_clusterer, load_scorer
from palmette.search.loop import Limits, Observer, search
from palmette.tasks.load import load_task


class Timed:
    """A backend that counts the tokens and the seconds of its calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.kv_bytes_per_token, self.context_tokens = backend.kv_bytes_per_token, backend.context_tokens
        self.tokens, self.seconds = 0, 0.0

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

    def room_tokens(self) -> int | None:
        """Return the free tokens."""
        return self._backend.room_tokens()

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow the steps by the clock."""
        begun = time.perf_counter()
        steps = self._backend.expand(expansions)
        self.seconds += time.perf_counter() - begun
        self.tokens += sum(len(step.tokens) for step in steps)
        return steps


def written(config: Config, backend: Backend) -> tuple[int, float]:
    """Search all questions; return the tokens of their steps and the seconds in which the backend wrote them."""
    timed = Timed(backend)
    settings = config.search
    search(
        load_task(config.task).questions,
        timed,
        load_scorer(config.reward),
        STRATEGIES[settings.strategy](settings),
        Limits(
            settings.width,
            settings.depth,
            settings.step_tokens,
            settings.total_tokens,
            settings.questions_in_flight,
        ),
        seed=config.seed,
        how=settings.fold,
        observer=Observer(),
        clusterer=load_clusterer(config.embedder) if settings.groups_steps else None,
    )
    return timed.tokens, timed.seconds
