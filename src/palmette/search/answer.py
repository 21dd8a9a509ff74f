"""Aggregates step scores into one number and votes on the answers of a tree's finished leaves."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from palmette.config import Aggregate, Vote
from palmette.tree import Tree


def aggregate_scores(scores: Sequence[float], aggregate: Aggregate) -> float:
    """Return one score for a path; a path without scores counts 1, so that votes without a scorer are equal."""
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
    """The vote of one finished leaf: its answer as written, its canonical form, its aggregated score."""

    leaf: int
    answer: str
    canonical: str
    score: float


def ballots(
    tree: Tree, aggregate: Aggregate, extract: Callable[[str], str | None], canonical: Callable[[str], str]
) -> list[Ballot]:
    """Read the answer of every finished leaf; a leaf without one casts no ballot."""
    cast = []
    for node in tree.nodes:
        answer = extract(tree.solution(node.id)) if node.finished else None
        if answer is not None:
            cast.append(Ballot(node.id, answer, canonical(answer), aggregate_scores(tree.scores(node.id), aggregate)))
    return cast


def elect(cast: Sequence[Ballot], vote: Vote) -> Ballot | None:
    """Return the oldest ballot for the elected answer, None without ballots. Ties go to the older leaf."""
    if not cast:
        return None
    if vote == "best":
        return max(cast, key=lambda ballot: (ballot.score, -ballot.leaf))
    weights: dict[str, float] = {}
    for ballot in cast:
        weights[ballot.canonical] = weights.get(ballot.canonical, 0.0) + (1.0 if vote == "majority" else ballot.score)
    winner = max(weights, key=lambda answer: weights[answer])
    return next(ballot for ballot in cast if ballot.canonical == winner)


VOTES: tuple[Vote, ...] = get_args(Vote)
