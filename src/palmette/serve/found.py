"""What a search found, as the choices of an answer: the best distinct answers, or the samples of plain generation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palmette.search.answer import VOTES, Ballot, aggregate_scores, elect
from palmette.search.result import SearchResult
from palmette.serve.searching.leading import before_stop, branch_of
from palmette.settings import SearchSettings, Vote
from palmette.tree import Tree

_MOST_VOTES = 16


@dataclass(frozen=True)
class Choice:
    """One answer: `content` for the reader, the `reasoning` that led to it, and the leaf that it comes from."""

    content: str
    reasoning: str | None
    leaf: int
    score: float | None
    finish: Literal["stop", "length"]
    answer: str | None = None


def choices_of(
    result: SearchResult, settings: SearchSettings, n: int, stops: Sequence[str], *, plain: bool, whole: bool
) -> list[Choice]:
    """Return at most `n` choices, the best first; of a search as many as there are distinct answers.

    `whole` puts the solution into the content, not the answer alone; where no answer can be read, that is so too.
    """
    tree = result.tree
    if plain:
        leaves = {branch_of(tree, tree.nodes[leaf]): leaf for leaf in tree.leaves()}
        return [_choice(result, leaves[branch], settings, stops, None, whole=True) for branch in sorted(leaves)]
    ballots = _distinct(result.ballots, settings.vote)[:n]
    if not ballots:
        return [_choice(result, _best_leaf(result, settings), settings, stops, None, whole=True, thinks=True)]
    return [
        _choice(result, ballot.leaf, settings, stops, ballot.answer, whole=whole, thinks=True) for ballot in ballots
    ]


def _choice(
    result: SearchResult,
    leaf: int,
    settings: SearchSettings,
    stops: Sequence[str],
    answer: str | None,
    *,
    whole: bool,
    thinks: bool = False,
) -> Choice:
    tree, text = result.tree, before_stop(result.tree.solution(leaf), stops)
    scores = tree.scores(leaf)
    return Choice(
        content=text if whole or answer is None else answer,
        reasoning=text if thinks else None,
        leaf=leaf,
        score=aggregate_scores(scores, settings.aggregate) if scores else None,
        finish="stop" if tree.nodes[leaf].finished else "length",
        answer=answer,
    )


def _best_leaf(result: SearchResult, settings: SearchSettings) -> int:
    """Return the leaf to show where none has an answer: a finished one if there is one, the best by score."""
    tree = result.tree
    leaves = tree.leaves()

    def worth(leaf: int) -> tuple[bool, float, int]:
        return tree.nodes[leaf].finished, aggregate_scores(tree.scores(leaf), settings.aggregate), -leaf

    return max(leaves, key=worth)


def _distinct(ballots: Sequence[Ballot], vote: Vote) -> list[Ballot]:
    """Return the winner of the vote, then the winner among the other answers, and so on."""
    left, found = list(ballots), []
    while (winner := elect(left, vote)) is not None:
        found.append(winner)
        left = [ballot for ballot in left if ballot.canonical != winner.canonical]
    return found


def votes_of(result: SearchResult) -> list[dict[str, Any]]:
    """Return the distinct answers as JSON values, those with most leaves first: how many voted, and their scores."""
    grouped: dict[str, list[Ballot]] = {}
    for ballot in result.ballots:
        grouped.setdefault(ballot.canonical, []).append(ballot)
    votes = [
        {"answer": group[0].answer, "leaves": len(group), "score": round(sum(ballot.score for ballot in group), 6)}
        for group in grouped.values()
    ]
    votes.sort(key=lambda vote: (-int(str(vote["leaves"])), -float(str(vote["score"]))))
    return votes[:_MOST_VOTES]


def path_logprobs(tree: Tree, leaf: int) -> tuple[list[int], list[float]]:
    """Return the tokens on the path to a leaf and their log-probabilities."""
    steps = tree.steps(leaf)
    return [token for step in steps for token in step.tokens], [each for step in steps for each in step.logprobs]


__all__ = ["VOTES", "Choice", "choices_of", "path_logprobs", "votes_of"]
