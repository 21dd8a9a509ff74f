"""Best-of-N at every smaller N, from the trees of one best_of_n run: nothing is generated."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palmette.config import Aggregate, Vote
from palmette.search.answer import elect
from palmette.search.rejudge import Rejudge
from palmette.search.replay import Replay
from palmette.search.summary import Accuracy
from palmette.tree import Tree

_BEYOND = 0.02
"""How far past the ends a cost still counts as theirs: runs of one width differ by about a percent in their tokens."""


@dataclass(frozen=True)
class Point:
    """Best-of-`branches` over some questions; tokens are means per question."""

    branches: int
    accuracy: Accuracy
    generated_tokens: float
    mean_kv_tokens: float


def doublings(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on, ending with `most` itself."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


def curve(
    told: Iterable[Replay], rejudge: Rejudge, aggregate: Aggregate, vote: Vote, counts: Sequence[int]
) -> list[Point]:
    """Answer every finished question with the first n of its branches only, for each n of `counts`.

    Branches of best_of_n never meet and never compete, so its first n are what a run of width n draws, metered as the
    loop would meter them: in each wave the tokens, each once, on the paths of the nodes which that wave added.
    """
    tallies = [_Tally() for _ in counts]
    for one in told:
        if one.finished is None:
            continue
        branch = _branches(one.tree)
        cast = rejudge.ballots(one, aggregate)
        for count, tally in zip(counts, tallies, strict=True):
            elected = elect([ballot for ballot in cast if branch[ballot.leaf] < count], vote)
            tally.questions += 1
            tally.correct += rejudge.outcome(one, elected) == "correct"
            nodes = [node for node in one.tree.nodes[1:] if branch[node.id] < count]
            tally.generated_tokens += sum(len(node.tokens) for node in nodes)
            tally.kv_tokens.append(_mean_kv_tokens(one, branch, count))
    return [tally.point(count) for count, tally in zip(counts, tallies, strict=True) if tally.questions]


def at_tokens(points: Sequence[Point], generated_tokens: float) -> float | None:
    """Return the accuracy at a cost, linear in the logarithm of tokens between two points.

    None beyond the ends by more than 2%; less than that, it is the end's own accuracy.
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
        # fsum: questions finish in another order after a resume, and the mean must not show it.
        kv_tokens = math.fsum(self.kv_tokens) / self.questions
        return Point(count, accuracy, self.generated_tokens / self.questions, kv_tokens)


def _branches(tree: Tree) -> list[int]:
    """Return for each node which child of the prompt it descends from, counted from 0; the prompt has 0 too."""
    branch, known = [0], 0
    for node in tree.nodes[1:]:
        assert node.parent is not None
        if node.parent == 0:
            branch.append(known)
            known += 1
        else:
            branch.append(branch[node.parent])
    return branch


def _mean_kv_tokens(one: Replay, branch: Sequence[int], count: int) -> float:
    """Return the mean over those waves that grow one of the first `count` branches; 0 where there is none."""
    added = ([node.id for node in wave.nodes if branch[node.id] < count] for wave in one.waves)
    held = [one.tree.unique_tokens(leaves) for leaves in added if leaves]
    return sum(held) / len(held) if held else 0.0
