"""A backend with out-of-memory retry: what it computes at once is split into pieces that fit in memory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from palmette.backends.backend import Backend, Expansion, StartsSteps, Step
from palmette.backends.blocking import WrappedBackend, as_started
from palmette.memory.guard import RunPieces
from palmette.own_parts import name_of


@runtime_checkable
class FinishesInPieces(Protocol):
    """A backend that supports out-of-memory retry."""

    def finished_in_pieces(self, run_pieces: RunPieces) -> list[tuple[Expansion, Step]]:
        """Return the same steps as `finished`; the model runs inside `run_pieces`, which may retry a failed piece."""


class GuardedBackend(WrappedBackend[StartsSteps]):
    """Wraps another backend. A step depends only on its prefix and seed, so work in pieces gives the same steps.

    `run_pieces` splits the work (`Guard.run`): the lanes of a tick, or all expansions of a backend with a blocking
    `expand`. `phase` is entered around each `finished`, to measure memory.
    """

    def __init__(
        self, backend: Backend, run_pieces: RunPieces, phase: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(as_started(backend), name_of(backend))
        self._run_pieces = run_pieces
        self._phase = phase

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Take these expansions; see `StartsSteps`."""
        self._backend.start(expansions)

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Return the steps that are done next; see `StartsSteps`."""
        with self._phase():
            if isinstance(self._backend, FinishesInPieces):
                return self._backend.finished_in_pieces(self._run_pieces)
            return self._backend.finished()
