"""The responses of a search as training sees them: one for each leaf that was not pruned."""

from dataclasses import dataclass

from palmette.search.answer import aggregate_scores
from palmette.search.result import SearchResult
from palmette.settings import Aggregate
from palmette.tasks.task import Question
from palmette.tree import Node


@dataclass(frozen=True)
class Response:
    """One response to a question: its text and tokens, and what judge and scorer said of it.

    `is_cut` tells that a limit ended it before the policy did. `judged` is the judge's reward, `score` the aggregated
    score of its steps; None without a verdict or a scorer. `leaf` is its last node in the tree.
    """

    question: Question
    leaf: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    answer: str | None
    is_cut: bool
    judged: float | None
    score: float | None


def responses_of(result: SearchResult, aggregate: Aggregate) -> list[Response]:
    """Return the responses of a search in the order of their leaves; pruned branches are left out."""
    answers = {ballot.leaf: ballot.answer for ballot in result.ballots}
    return [_response(result, leaf, answers.get(leaf.id), aggregate) for leaf in result.leaves]


def _response(result: SearchResult, leaf: Node, answer: str | None, aggregate: Aggregate) -> Response:
    steps, scores = result.tree.steps(leaf.id), result.tree.scores(leaf.id)
    return Response(
        question=result.question,
        leaf=leaf.id,
        text="".join(step.text for step in steps),
        tokens=tuple(token for step in steps for token in step.tokens),
        logprobs=tuple(logprob for step in steps for logprob in step.logprobs),
        answer=answer,
        is_cut=leaf.state == "stopped",
        judged=leaf.reward,
        score=aggregate_scores(scores, aggregate) if scores else None,
    )
