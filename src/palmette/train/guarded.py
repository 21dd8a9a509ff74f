"""A learner whose micro-batches are cut into pieces that fit, by whoever watches memory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from palmette.train.learner import Learner, RunPieces, UpdateResult
from palmette.train.samples import Sample


class GuardedLearner:
    """Updates by another learner. Sums are those of the whole update, so pieces change nothing but rounding.

    Weights, gradients and optimizer state cannot be cut: where they alone do not fit, no guard helps.
    """

    def __init__(
        self, learner: Learner, run_pieces: RunPieces, phase: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._learner = learner
        self._run_pieces = run_pieces
        self._phase = phase

    def update(self, samples: Sequence[Sample], *, micro_batch_tokens: int) -> UpdateResult:
        """Change the weights by one step on all samples; see the learner."""
        with self._phase():
            return self._learner.update(samples, micro_batch_tokens=micro_batch_tokens, run_pieces=self._run_pieces)
