"""The scorer contract: who guesses how good a step is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from palmette.backends.backend import Message
from palmette.memory.guard import GivesUpCache, RunPieces


@dataclass(frozen=True)
class Candidate:
    """A question's messages with the steps taken so far; the last one is to be scored."""

    messages: tuple[Message, ...]
    steps: tuple[str, ...]
    finished: bool


class Scorer(Protocol):
    """Scores last steps: 0 surely wrong, 1 surely right."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score in [0, 1] for each candidate, in order."""


@runtime_checkable
class PiecewiseScorer(Scorer, GivesUpCache, Protocol):
    """A scorer inside the process, whose memory can run out: it scores in pieces, and what it keeps can be given up."""

    def score_in_pieces(self, candidates: Sequence[Candidate], run_pieces: RunPieces) -> list[float]:
        """Return the same scores, with work handed to `run_pieces`; a piece that fails can be worked on again."""
