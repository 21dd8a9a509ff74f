"""Wraps a scorer and an embedder with out-of-memory retry: their work runs in pieces that fit."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from palmette.backends.backend import Message
from palmette.memory.guard import RunPieces
from palmette.own_parts import name_of
from palmette.score.scorer import Candidate, Embedder, KeepsPaths, PiecewiseScorer, Scorer, StartsScores

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Phase = Callable[[], AbstractContextManager[None]]
"""Returns a context manager that is entered while the work runs, so that memory is metered by phase."""


class GuardedScorer:
    """A scorer that calls another one through `run_pieces`.

    A scorer that does not implement `PiecewiseScorer` is called once for all candidates, without a retry.
    """

    def __init__(self, scorer: Scorer, run_pieces: RunPieces, phase: Phase) -> None:
        self._scorer = scorer
        self.part_name = name_of(scorer)
        self._run_pieces = run_pieces
        self._phase = phase

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self._scorer.calls

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score in [0, 1] for each candidate, in order."""
        with self._phase():
            if isinstance(self._scorer, PiecewiseScorer):
                return self._scorer.score_in_pieces(candidates, self._run_pieces)
            return self._scorer.score(candidates)

    def begin(self, candidates: Sequence[Candidate]) -> "Future[list[float]] | None":
        """Begin to score, where the scorer can do that; see `StartsScores`."""
        return self._scorer.begin(candidates) if isinstance(self._scorer, StartsScores) else None

    def wait(self, begun: "Collection[Future[list[float]]]") -> None:
        """Wait until one of these is done; only this time counts as spent on scores."""
        assert isinstance(self._scorer, StartsScores)
        with self._phase():
            self._scorer.wait(begun)

    def forget(self, messages: Sequence[Message]) -> None:
        """Have the scorer forget a question, if it keeps any; see `KeepsPaths`."""
        if isinstance(self._scorer, KeepsPaths):
            self._scorer.forget(messages)


class GuardedEmbedder:
    """An embedder that calls another one through `run_pieces`."""

    def __init__(self, embedder: Embedder, run_pieces: RunPieces, phase: Phase) -> None:
        self._embedder = embedder
        self._run_pieces = run_pieces
        self._phase = phase
        self.name = embedder.name

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text, in order."""
        with self._phase():
            pieces: list[Any] = self._run_pieces(texts, self._embedder.embed)
        return pieces[0] if len(pieces) == 1 else [vector for piece in pieces for vector in piece]
