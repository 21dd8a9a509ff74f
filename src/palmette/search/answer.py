"""Aggregates the step scores of a path into one number; votes on the answers of a tree's finished leaves."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from palmette.score.plain import join_votes
from palmette.settings import Aggregate, Vote
from palmette.tree import Tree


def aggregate_scores(scores: Sequence[float], aggregate: Aggregate) -> float:
    """Return one score for a path from the scores of its steps, first step first.

    Without scores the result is 1.0, so that every leaf has the same weight in a vote when no scorer runs.
    """
    if not scores:
        return 1.0
    if aggregate == "last":
        return scores[-1]
    if aggregate == "min":
        return min(scores)
    if aggregate == "mean":
        return sum(scores) / len(scores)
    return math.prod(scores)


@dataclass(frozen=True)
class Ballot:
    """The vote of one finished leaf: its answer as written and in canonical form, its path's aggregated score."""

    leaf: int
    answer: str
    canonical: str
    score: float


def ballots(
    tree: Tree, aggregate: Aggregate, extract: Callable[[str], str | None], canonical: Callable[[str], str]
) -> list[Ballot]:
    """Return one ballot for each finished leaf from which `extract` reads an answer, oldest leaf first.

    Answers with the same `canonical` form count as the same answer in a vote, measures as in `join_votes`.
    """
    answers = {node.id: extract(tree.solution(node.id)) for node in tree.nodes if node.finished}
    found = [(leaf, answer) for leaf, answer in answers.items() if answer is not None]
    forms = join_votes([canonical(answer) for _, answer in found])
    return [
        Ballot(leaf, answer, form, aggregate_scores(tree.scores(leaf), aggregate))
        for (leaf, answer), form in zip(found, forms, strict=True)
    ]


def elect(votes: Sequence[Ballot], vote: Vote) -> Ballot | None:
    """Return the ballot that wins, or None without ballots. Ties go to the answer or leaf that comes first.

    `best` takes the ballot with the highest score. `majority` counts ballots per canonical answer, `weighted` sums
    their scores, and of equal sums takes the one with more ballots, as where every score is 0; both return the first
    ballot for the answer that wins.
    """
    if not votes:
        return None
    if vote == "best":
        return max(votes, key=lambda ballot: (ballot.score, -ballot.leaf))
    counts: dict[str, int] = {}
    weights: dict[str, float] = {}
    for ballot in votes:
        counts[ballot.canonical] = counts.get(ballot.canonical, 0) + 1
        weights[ballot.canonical] = weights.get(ballot.canonical, 0.0) + ballot.score
    winner = max(counts, key=lambda answer: (weights[answer] if vote == "weighted" else 0.0, counts[answer]))
    return next(ballot for ballot in votes if ballot.canonical == winner)


VOTES: tuple[Vote, ...] = get_args(Vote)
