"""Every fold with every vote, again, from a run's trees: nothing is generated."""

from collections.abc import Iterable
from typing import get_args

from palmette.config import Fold
from palmette.search.answer import VOTES, elect
from palmette.search.referee import Referee
from palmette.search.replay import Replay
from palmette.search.summary import Accuracy

FOLDS: tuple[Fold, ...] = get_args(Fold)


def evaluate(told: Iterable[Replay], referee: Referee) -> dict[Fold, dict[str, Accuracy]]:
    """Return the accuracy of each fold and vote over the finished questions of a run."""
    outcomes: dict[Fold, dict[str, list[str]]] = {how: {vote: [] for vote in VOTES} for how in FOLDS}
    for one in told:
        if one.finished is None:
            continue
        for how in FOLDS:
            cast = referee.ballots(one, how)
            for vote in VOTES:
                outcomes[how][vote].append(referee.outcome(one, elect(cast, vote)))
    return {how: {vote: _accuracy(found) for vote, found in by_vote.items()} for how, by_vote in outcomes.items()}


def _accuracy(found: list[str]) -> Accuracy:
    return Accuracy(found.count("correct"), len(found), {outcome: found.count(outcome) for outcome in set(found)})
