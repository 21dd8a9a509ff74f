"""Steps that are started and finished, from a backend that has one blocking call; and the other way round."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

from palmette.backends.backend import Backend, Expands, Expansion, Interruptible, Message, StartsSteps, Step
from palmette.errors import BackendError
from palmette.memory.guard import RunPieces, run_whole
from palmette.own_parts import name_of, telling


def as_started(backend: Backend) -> StartsSteps:
    """Return a backend that has `start` and `finished` as it is, one that has only `expand` wrapped."""
    if callable(getattr(backend, "start", None)) and callable(getattr(backend, "finished", None)):
        return cast(StartsSteps, backend)
    return Blocking(cast(Expands, backend))


def expand_all(backend: StartsSteps, expansions: Sequence[Expansion]) -> list[Step]:
    """Generate one step for each expansion, wait for all, return them in the same order. Nothing may be in flight."""
    backend.start(expansions)
    steps: dict[Expansion, Step] = {}
    while done := backend.finished():
        steps.update(done)
    return [steps[expansion] for expansion in expansions]


Wrapped = TypeVar("Wrapped", bound=Backend)


class WrappedBackend(Generic[Wrapped]):
    """Stands for another backend, under its name; a subclass says how steps are generated."""

    def __init__(self, backend: Wrapped, part_name: str) -> None:
        self._backend = backend
        self.part_name = part_name
        self.kv_bytes_per_token = backend.kv_bytes_per_token
        self.context_tokens = backend.context_tokens

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self._backend.calls

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a prompt; see `Backend`."""
        return self._backend.encode(messages)

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Free the KV of these nodes; see `Backend`."""
        self._backend.release(question, nodes)

    def interrupt(self) -> None:
        """Have `finished` return soon, where the other backend can; see `Interruptible`."""
        backend: object = self._backend
        if isinstance(backend, Interruptible):
            backend.interrupt()


class Blocking(WrappedBackend[Expands]):
    """Wraps a backend that has only `expand`: what was started is generated in one call when steps are waited for."""

    def __init__(self, backend: Expands) -> None:
        super().__init__(backend, name_of(backend))
        self._started: list[Expansion] = []

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Take these expansions; see `StartsSteps`."""
        self._started += expansions

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Generate the steps of all expansions that were started; see `StartsSteps`."""
        return self.finished_in_pieces(run_whole)

    def finished_in_pieces(self, run_pieces: RunPieces) -> list[tuple[Expansion, Step]]:
        """Generate them in pieces. Raises BackendError, with nothing in flight, if `expand` fails or breaks its word.

        An empty list is not passed on: `expand` is called with one expansion or more.
        """
        expansions, self._started = self._started, []
        if not expansions:
            return []
        with telling("backend", self.part_name, "expand", BackendError):
            grown: list[Any] = [step for part in run_pieces(expansions, self._backend.expand) for step in part]
        if len(grown) != len(expansions):
            raise BackendError(
                f"backend {self.part_name}: expand returned {len(grown)} steps for {len(expansions)} expansions: "
                f"expected one for each, in order"
            )
        return list(zip(expansions, grown, strict=True))

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Free the KV of these nodes; see `Backend`."""
        gone = set(nodes)
        self._started = [each for each in self._started if each.question != question or each.node not in gone]
        super().release(question, nodes)
