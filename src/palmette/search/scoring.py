"""Scores complete waves: while the loop waits or, where the scorer can, while other questions go on."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from palmette.score.scorer import Candidate, Scorer, StartsScores
from palmette.search.checked import begin_scores, scores_of, wait_for_scores
from palmette.search.growth import Growth
from palmette.tree import Node

Wave = tuple[Growth, Sequence[Node]]
"""A question with the nodes of its wave that is complete."""


class Scoring:
    """The waves that are being scored. `wake` is called, in any thread, when scores are there that were waited for."""

    def __init__(self, scorer: Scorer | None, wake: Callable[[], None]) -> None:
        self._scorer = scorer
        self._wake = wake
        self._running: dict[str, tuple[Future[list[float]], Wave, list[Candidate]]] = {}
        """By the id of the question: it has one wave at a time."""
        self._scored: list[Wave] = []

    def __contains__(self, growth: Growth) -> bool:
        return growth.question.id in self._running

    def __len__(self) -> int:
        return len(self._running)

    def start(self, waves: Sequence[Wave]) -> None:
        """Take complete waves. A scorer that blocks scores all of them now, in one call."""
        if self._scorer is None:
            self._scored += waves
            return
        at_once: list[tuple[Wave, list[Candidate]]] = []
        for wave in waves:
            candidates = _candidates(wave)
            future = begin_scores(self._scorer, candidates)
            if future is None:
                at_once.append((wave, candidates))
            else:
                self._running[wave[0].question.id] = future, wave, candidates
                future.add_done_callback(lambda _: self._wake())
        if at_once:
            together = [candidate for _, candidates in at_once for candidate in candidates]
            scores = iter(scores_of(self._scorer, together))
            for wave, _ in at_once:
                self._set(wave, [next(scores) for _ in wave[1]])

    def finished(self, *, wait: bool = False) -> list[Wave]:
        """Return the waves that have been scored since the last call; with `wait` at least one of those that run."""
        if wait and not self._scored and self._running:
            assert isinstance(self._scorer, StartsScores)
            wait_for_scores(self._scorer, [future for future, *_ in self._running.values()])
        for name, (future, wave, candidates) in list(self._running.items()):
            if future.done():
                assert self._scorer is not None
                del self._running[name]
                self._set(wave, scores_of(self._scorer, candidates, future))
        scored, self._scored = self._scored, []
        return scored

    def close(self) -> None:
        """Give up what is being scored."""
        for future, *_ in self._running.values():
            future.cancel()
        self._running.clear()

    def _set(self, wave: Wave, scores: Sequence[float]) -> None:
        for node, score in zip(wave[1], scores, strict=True):
            node.score = score
        self._scored.append(wave)


def _candidates(wave: Wave) -> list[Candidate]:
    growth, added = wave
    question = growth.question
    paths = [(tuple(step.text for step in growth.tree.steps(node.id)), node.finished) for node in added]
    return [Candidate(question.messages, steps, finished, question.text) for steps, finished in paths]
