"""One request's search, run in a thread of its own: the library's loop on a seat of the shared engine."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock

from palmette.events import Event
from palmette.own_parts import name_of
from palmette.score.judge import Judge, Verdict
from palmette.search.cluster import Clusterer
from palmette.search.growth import Growth, Limits
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.search.result import SearchResult, judge_tree
from palmette.serve.searching.leading import LeadingBranch, StoppedText, branch_of, leading_leaf
from palmette.serve.searching.seat import GivenUpError, Seat, TimeIsUpError
from palmette.serve.searching.shared_engine import SharedEngine
from palmette.settings import SearchSettings
from palmette.tasks.task import Question
from palmette.tree import Node

QUESTION = "request"
"""The id of every request's question: the seeds of steps depend on it, and the same request has to repeat."""


@dataclass(frozen=True)
class Piece:
    """Text to be sent: of the branch that leads, or of the plain branch `choice`."""

    text: str
    choice: int | None = None


@dataclass
class SearchJob:
    """A search of one question. `tell` is called in the job's thread with pieces as the tree grows.

    `judging` is held while answers are read: judges are not made for several threads.
    """

    engine: SharedEngine
    seat: Seat
    question: Question
    settings: SearchSettings
    limits: Limits
    seed: int
    judge: Judge
    judging: Lock
    tell: Callable[[Piece], None]
    plain: bool = False
    stops: Sequence[str] = ()
    clusterer: Clusterer | None = None
    events: list[Event] = field(default_factory=list)
    """What the search has done so far, for the page of its tree."""
    timed_out: bool = False
    _observer: "_Told | None" = None

    def run(self) -> SearchResult:
        """Search and return the result; everything on the engine is free when this returns or raises.

        A search whose time is up gives what it has found, if any wave is complete. Raises GivenUpError for one that was
        given up, and what the parts raise.
        """
        scorer = self.seat if self.engine.scores and not self.plain else None
        observer = self._observer = _Told(self)
        growths = search(
            [self.question],
            self.seat,
            scorer,
            self.settings.build_strategy(),
            self.limits,
            seed=self.seed,
            aggregate=self.settings.aggregate,
            observer=observer,
            clusterer=self.clusterer,
        )
        try:
            with closing(growths):
                growth = next(growths)
        except TimeIsUpError:
            if observer.growth is None or not observer.growth.wave:
                raise
            growth = observer.growth
            self.timed_out = True
        finally:
            self.engine.leave(self.seat).result()
        with self.judging:
            return judge_tree(growth, _JudgeWhileOpen(self.judge, self.seat), self.settings)

    def follow(self, leaf: int) -> None:
        """Tell what is missing for the reasoning to end with the path to the elected leaf."""
        if self._observer is not None and not self.plain:
            self._observer.follow(leaf)

    def give_up(self) -> None:
        """End the search soon; safe to call from any thread, and after the search has ended."""
        self.seat.give_up(GivenUpError("the client has gone"))


class _JudgeWhileOpen:
    """A judge that asks another one, as long as the search was not given up: some answers take seconds to read."""

    def __init__(self, judge: Judge, seat: Seat) -> None:
        self._judge, self._seat = judge, seat
        self.by_answer = judge.by_answer
        self.part_name = name_of(judge)

    def extract(self, solution: str) -> str | None:
        """Return the answer of a solution; see `Judge`."""
        self._seat.check_open()
        return self._judge.extract(solution)

    def canonical(self, answer: str) -> str:
        """Return an answer's normal form; see `Judge`."""
        self._seat.check_open()
        return self._judge.canonical(answer)

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Return the verdict on a solution; see `Judge`."""
        self._seat.check_open()
        return self._judge.verdict(question, solution, answer)


class _Told(Recorder):
    """Records the events of a search and tells what there is to send after each wave."""

    def __init__(self, job: SearchJob) -> None:
        super().__init__(job.events.append)
        self.growth: Growth | None = None
        self._job = job
        self._lead = LeadingBranch()
        self._texts = [StoppedText(job.stops) for _ in range(job.limits.width if job.plain else 0)]

    def started(self, growth: Growth) -> None:
        """Record the question."""
        self.growth = growth
        super().started(growth)

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Record the wave, and tell what it adds to the branches that are shown."""
        super().wave_done(growth, added)
        if self._job.plain:
            for node in added:
                branch = branch_of(growth.tree, node)
                self._send(self._texts[branch].add(node.text), branch)
        else:
            leaf = leading_leaf(growth, self._job.settings.aggregate)
            if leaf is not None:
                self.follow(leaf)

    def follow(self, leaf: int) -> None:
        """Tell what is missing for the reasoning to end with the path to this leaf."""
        assert self.growth is not None
        self._send(self._lead.follow(self.growth.tree, leaf), None)

    def _send(self, text: str, choice: int | None) -> None:
        if text:
            self._job.tell(Piece(text, choice))
