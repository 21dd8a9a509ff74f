"""The trees of the newest searches, also of those that still grow, as the data that the report's explorer draws."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palmette.events import Event, WaveDone
from palmette.report.question_data import tree_data
from palmette.search.answer import VOTES, Ballot
from palmette.search.replay import replay
from palmette.search.result import SearchResult
from palmette.settings import SearchSettings

_MOST_NODES = 200_000
"""Steps of all trees that are kept; the oldest trees are dropped first."""


@dataclass(eq=False)
class GrowingTree:
    """A search as its page shows it. `events` grow while it runs; `votes` are there when it has ended."""

    id: str
    model: str
    settings: SearchSettings
    events: Sequence[Event]
    votes: dict[str, Any] | None = None
    failed: bool = False

    def finish(self, result: SearchResult) -> None:
        """Keep the votes of a search that has ended; its tree is in the events."""
        self.votes = _votes(result.ballots, {vote: choice.answer for vote, choice in result.choices.items()})

    def data(self) -> dict[str, Any]:
        """Return the tree as JSON values, with `state`: growing, done or failed."""
        replays = replay(list(self.events))
        state = "done" if self.votes else "failed" if self.failed else "growing"
        search = {"strategy": self.settings.strategy, "width": self.settings.width, "vote": self.settings.vote}
        run: dict[str, Any] = {
            "config": {"search": {**search, "aggregate": self.settings.aggregate}},
            "model": self.model,
        }
        questions = [
            {**tree_data(each, self.settings), **(self.votes or _votes((), dict.fromkeys(VOTES))), "judged": False}
            for each in replays.values()
        ]
        return {**run, "state": state, "results": {"questions": len(questions)}, "questions": questions}

    def nodes(self) -> int:
        """Count the steps so far."""
        return sum(len(event.nodes) for event in list(self.events) if isinstance(event, WaveDone))


def _votes(ballots: Sequence[Ballot], elected: Mapping[str, str | None]) -> dict[str, Any]:
    """Return ballots and choices as `question_data` has them; there is nobody to judge them."""
    places: dict[str, int] = {}
    for ballot in ballots:
        places.setdefault(ballot.canonical, len(places))
    return {
        "ballots": [[each.leaf, each.answer, each.score, places[each.canonical]] for each in ballots],
        "outcomes": [None] * len(places),
        "choices": {vote: [answer, None] for vote, answer in elected.items()},
    }


class TreeStore:
    """Keeps the newest trees by ids that nobody can guess: who knows one may open its page."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, GrowingTree] = OrderedDict()

    def add(self, model: str, settings: SearchSettings, events: Sequence[Event]) -> GrowingTree:
        """Keep a new tree; drop the oldest where there are too many."""
        tree = GrowingTree(secrets.token_urlsafe(16), model, settings, events)
        self._kept[tree.id] = tree
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return tree

    def shrink(self) -> None:
        """Drop the oldest trees while there are too many steps in all."""
        while len(self._kept) > 1 and sum(tree.nodes() for tree in self._kept.values()) > _MOST_NODES:
            self._kept.popitem(last=False)

    def find(self, name: str) -> GrowingTree | None:
        """Return a tree by its id, None if it is not kept."""
        return self._kept.get(name)
