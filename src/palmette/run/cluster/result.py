"""The result of a question from the events that a worker told of it."""

from collections.abc import Sequence

from palmette import registry
from palmette.events import Event
from palmette.score.judge import Judge
from palmette.search.answer import VOTES, ballots, elect
from palmette.search.checked import CheckedJudge
from palmette.search.replay import replay
from palmette.search.result import Choice, SearchResult
from palmette.settings import SearchSettings
from palmette.tasks.task import Question


def result_of(question: Question, events: Sequence[Event], judge: Judge, settings: SearchSettings) -> SearchResult:
    """Return what a search found; log-probabilities have the four decimals that events have.

    The judge only reads answers: outcomes and rewards are those that the worker's judge gave. Raises RunError for
    events that contradict each other.
    """
    replayed = replay(events)[question.id]
    finished = replayed.finished
    assert finished is not None
    judge = CheckedJudge(judge)
    votes = ballots(replayed.tree, settings.aggregate, judge.extract, judge.canonical)
    choices: dict[str, Choice] = {}
    for vote in VOTES:
        chosen, ballot = finished.choices[vote], elect(votes, vote)
        choices[vote] = Choice(chosen.answer, chosen.outcome, None if ballot is None else ballot.leaf)
    return SearchResult(
        question=question,
        strategy=registry.lasting(settings.strategy),
        width=settings.width,
        vote=settings.vote,
        choices=choices,
        ballots=tuple(votes),
        tree=replayed.tree,
        tokens=finished.generated_tokens,
        mean_kv_tokens=finished.mean_kv_tokens,
        peak_kv_tokens=finished.peak_kv_tokens,
        unshared_kv_tokens=finished.peak_separate_kv_tokens,
        waves=finished.waves,
        out_of_room=finished.out_of_room,
    )
