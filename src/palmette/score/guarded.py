"""A scorer and an embedder whose work is cut into pieces that fit, by whoever watches memory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from palmette.memory.guard import RunPieces
from palmette.score.scorer import Candidate, Embedder, PiecewiseScorer, Scorer

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Phase = Callable[[], AbstractContextManager[None]]


class GuardedScorer:
    """Serves the contract by another scorer. One that does not work in pieces is called as it is."""

    def __init__(self, scorer: Scorer, run_pieces: RunPieces, phase: Phase) -> None:
        self._scorer = scorer
        self._run_pieces = run_pieces
        self._phase = phase

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self._scorer.calls

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score for each candidate; see the contract."""
        with self._phase():
            if isinstance(self._scorer, PiecewiseScorer):
                return self._scorer.score_in_pieces(candidates, self._run_pieces)
            return self._scorer.score(candidates)


class GuardedEmbedder:
    """Serves the contract by another embedder."""

    def __init__(self, embedder: Embedder, run_pieces: RunPieces, phase: Phase) -> None:
        self._embedder = embedder
        self._run_pieces = run_pieces
        self._phase = phase
        self.name = embedder.name

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text; see the contract."""
        with self._phase():
            pieces = self._run_pieces(texts, self._embedder.embed)
        return pieces[0] if len(pieces) == 1 else [vector for piece in pieces for vector in piece]
