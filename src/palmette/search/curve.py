"""Computes the accuracy of best-of-N for every smaller N from the trees of a best_of_n run; generates nothing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palmette.search.answer import elect
from palmette.search.rejudge import Rejudge
from palmette.search.replay import Replay
from palmette.search.summary import Accuracy
from palmette.settings import Aggregate, Vote
from palmette.tree import Tree

_BEYOND = 0.02
"""A cost up to 2% beyond the ends of the curve counts as the end: runs of one width differ by about 1% in tokens."""


@dataclass(frozen=True)
class Point:
    """Best-of-N with N = `branches`; tokens are means per question."""

    branches: int
    accuracy: Accuracy
    generated_tokens: float
    mean_kv_tokens: float


def doublings(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on, ending with `most` itself."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


def curve(
    replays: Iterable[Replay], rejudge: Rejudge, aggregate: Aggregate, vote: Vote, counts: Sequence[int]
) -> list[Point]:
    """Vote again on each finished question with its first n branches only; return one point for each n of `counts`.

    The branches of best_of_n are sampled independently, so the first n of them are what a run of width n generates.
    KV tokens are counted as the loop counts them: in each wave, every distinct prefix of the nodes added counts once.
    Without finished questions there are no points. Raises RunError if a question is no longer in the task.
    """
    tallies = [_Tally() for _ in counts]
    for replayed in replays:
        if replayed.finished is None:
            continue
        branch = _branches(replayed.tree)
        votes = rejudge.ballots(replayed, aggregate)
        for count, tally in zip(counts, tallies, strict=True):
            elected = elect([ballot for ballot in votes if branch[ballot.leaf] < count], vote)
            tally.questions += 1
            tally.correct += rejudge.outcome(replayed, elected) == "correct"
            nodes = [node for node in replayed.tree.nodes[1:] if branch[node.id] < count]
            tally.generated_tokens += sum(len(node.tokens) for node in nodes)
            tally.kv_tokens.append(_mean_kv_tokens(replayed, branch, count))
    return [tally.point(count) for count, tally in zip(counts, tallies, strict=True) if tally.questions]


def at_tokens(points: Sequence[Point], generated_tokens: float) -> float | None:
    """Return the accuracy of best-of-N at so many generated tokens per question, None outside the curve's range.

    Between two points it is interpolated, linear in the logarithm of the tokens. Up to 2% beyond the first or last
    point it is that point's accuracy.
    """
    if not points or not 0 < points[0].generated_tokens * (1 - _BEYOND) <= generated_tokens:
        return None
    if generated_tokens > points[-1].generated_tokens * (1 + _BEYOND):
        return None
    for left, right in pairwise(points):
        low, high = left.generated_tokens, right.generated_tokens
        if generated_tokens <= high and high > low:
            part = max(0.0, math.log(generated_tokens / low) / math.log(high / low))
            return left.accuracy.share + part * (right.accuracy.share - left.accuracy.share)
    return points[-1].accuracy.share


class _Tally:
    def __init__(self) -> None:
        self.questions = self.correct = self.generated_tokens = 0
        self.kv_tokens: list[float] = []

    def point(self, count: int) -> Point:
        accuracy = Accuracy(self.correct, self.questions, {})
        # fsum: a resumed run finishes its questions in another order, which must not change the mean.
        kv_tokens = math.fsum(self.kv_tokens) / self.questions
        return Point(count, accuracy, self.generated_tokens / self.questions, kv_tokens)


def _branches(tree: Tree) -> list[int]:
    """Return for each node which child of the prompt it descends from, counted from 0; for the prompt itself 0."""
    branch, known = [0], 0
    for node in tree.nodes[1:]:
        assert node.parent is not None
        if node.parent == 0:
            branch.append(known)
            known += 1
        else:
            branch.append(branch[node.parent])
    return branch


def _mean_kv_tokens(replayed: Replay, branch: Sequence[int], count: int) -> float:
    """Return the mean over the waves that added to one of the first `count` branches; 0 without such a wave."""
    added = ([node.id for node in wave.nodes if branch[node.id] < count] for wave in replayed.waves)
    kv_tokens = [replayed.tree.kv_counts(leaves).held for leaves in added if leaves]
    return sum(kv_tokens) / len(kv_tokens) if kv_tokens else 0.0
