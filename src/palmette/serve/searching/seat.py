"""What one search sees of the shared engine: a backend, scorer and embedder that seem to be its own."""

from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from palmette.backends.backend import Expansion, Message, Step
from palmette.errors import PalmetteError
from palmette.score.scorer import Candidate

if TYPE_CHECKING:
    from palmette.serve.searching.shared_engine import SharedEngine


class GivenUpError(PalmetteError):
    """The search was given up: its client has gone."""


class TimeIsUpError(PalmetteError):
    """The search has used the time that a request may take."""


class Seat:
    """The backend, scorer and embedder of one search; `prompt` are the tokens of its question.

    On the engine the steps belong to the question `name`, which no other seat has; the search itself may use any id,
    so that its seeds repeat. Steps are sampled with `temperature` and `top_p` where these are given, and a branch also
    ends with the step in which one of `stops` ends. After `deadline`, in seconds of the monotonic clock, waiting for a
    step raises TimeIsUpError.
    """

    def __init__(
        self,
        engine: "SharedEngine",
        name: str,
        prompt: tuple[int, ...],
        *,
        deadline: float,
        temperature: float | None = None,
        top_p: float | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self.name = name
        self.part_name = type(engine.parts.backend).__name__
        self.kv_bytes_per_token = engine.parts.backend.kv_bytes_per_token
        self.context_tokens = engine.parts.backend.context_tokens
        self.calls = 0
        self.nodes: set[int] = set()
        """Nodes that the engine may keep something for; read and written by its thread alone."""
        self._prompt = prompt
        self._cached: list[int] = []
        self._deadline = deadline
        self._sampling: dict[str, Any] = {"temperature": temperature, "top_p": top_p}
        self._stops = tuple(stops)
        self._tails: dict[int, str] = {}
        """The end of the text at each node, in which a stop may begin."""
        self._asked: dict[int | None, Expansion] = {}
        self._landed: SimpleQueue[tuple[Expansion, Step] | Exception] = SimpleQueue()
        self._error: Exception | None = None

    @property
    def cached_tokens(self) -> int:
        """How much of the prompt was cached before the search: the least that was told of a first step.

        Of several requests to a server the later ones find what the first of them left. 0 where nobody tells.
        """
        return min(self._cached, default=0)

    @property
    def is_open(self) -> bool:
        """Whether the search goes on."""
        return self._error is None

    def check_open(self) -> None:
        """Raise the error that the search was given up with, if it was."""
        if self._error is not None:
            raise self._error

    def give_up(self, error: Exception) -> None:
        """Have the search end with this error as soon as it asks for something; safe to call from any thread."""
        self._error = self._error or error
        self._landed.put(error)

    def land(self, expansion: Expansion, step: Step) -> None:
        """Hand over a step that is done."""
        self._landed.put((expansion, step))

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of the question."""
        return self._prompt

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Have these steps generated; see `StartsSteps`."""
        self.check_open()
        for each in expansions:
            self._asked[each.node] = each
        self._engine.start(self, [replace(each, question=self.name, **self._sampling) for each in expansions])

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Wait for steps of this search; see `StartsSteps`."""
        done = [self._next(wait=True)]
        while (more := self._next(wait=False)) is not None:
            done.append(more)
        return [self._read(*pair) for pair in done if pair is not None]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Free what is kept for these nodes; see `Backend`."""
        for node in nodes:
            self._tails.pop(node, None)
            self._asked.pop(node, None)
        self._engine.release(self, nodes)

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score for each candidate; see `Scorer`."""
        self.check_open()
        return self._engine.score(candidates)

    def forget(self, messages: Sequence[Message]) -> None:
        """Free what the scorer keeps for the question; see `KeepsPaths`."""
        self._engine.forget(messages)

    def _next(self, *, wait: bool) -> tuple[Expansion, Step] | None:
        self.check_open()
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeIsUpError("the time of the request is up")
        try:
            landed = self._landed.get(timeout=left) if wait else self._landed.get_nowait()
        except Empty:
            if wait:
                raise TimeIsUpError("the time of the request is up") from None
            return None
        if isinstance(landed, Exception):
            raise landed
        return landed

    def _read(self, expansion: Expansion, step: Step) -> tuple[Expansion, Step]:
        """Return a step with the expansion that the search knows, ended where a stop ends in it."""
        asked = self._asked.pop(expansion.node)
        if asked.parent == 0 and step.cached_tokens is not None:
            self._cached.append(min(step.cached_tokens, len(self._prompt)))
        if self._stops and asked.node is not None:
            text = self._tails.get(asked.parent, "") + step.text
            self._tails[asked.node] = text[-max(map(len, self._stops)) :]
            if step.finish != "end" and any(stop in text for stop in self._stops):
                step = replace(step, finish="end")
        return asked, step
