"""The driver's loop: gives workers questions, takes their events, asks a lost worker's questions again."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from palmette import __version__
from palmette.errors import BackendError, RunError
from palmette.events import Event
from palmette.own_parts import name_of, telling
from palmette.run.cluster.intake import Intake
from palmette.run.cluster.losses import late_reason, refuse_deadly
from palmette.run.cluster.tally import OwnWork, WorkerTally, joined_session
from palmette.run.cluster.wire import questions_text, read_answer, task_text
from palmette.run.search import Listener, Progress
from palmette.scale.crew import Answer, Crew, Loss, Member
from palmette.scale.fit import Demand, NodeRoom
from palmette.scale.shares import Shares
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.task import Task
from palmette.units import count_of, format_seconds, one_line

_LOOK_SECONDS = 0.5
"""How long the driver waits at most before it looks at deadlines and shows progress."""
_SKEW_SECONDS = 5.0
"""Clocks that differ by more are told of. Nothing but the times in a report depends on them."""


class Drive:
    """One search on the workers of a crew.

    `begin` is called when it is known what can be asked, `write` with the events of workers' ends and of the session.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        crew: Crew,
        demand: Demand,
        intake: Intake,
        done: set[str],
        begin: Callable[[], None],
        write: Callable[[Event], None],
        listener: Listener | None,
    ) -> None:
        self._config = config
        self._task = task
        self._crew = crew
        self._demand = demand
        self._intake = intake
        self._done = done
        self._begin = begin
        self._write = write
        self._listener = listener
        self._questions = {question.id: question for question in task.questions}
        self._shares: Shares | None = None
        self._checking: Member | None = None
        self._room = "null"
        self._skipped: tuple[str, ...] = ()
        self._tallies: dict[str, WorkerTally] = {}
        self._tokens_of_lost = 0
        self._kv_bytes_per_token = 0
        self._total = len(task.questions)
        self.notices: list[str] = []
        self._work = OwnWork()
        self._nodes: Callable[[], list[NodeRoom]] = list

    def run(self, members: Sequence[Member], nodes: Callable[[], list[NodeRoom]]) -> Iterator[SearchResult]:
        """Start the workers and search until every question is finished; end them however it ends.

        `nodes` tells what the cluster has. Raises BackendError where no worker is left, RunError for a question that
        was with too many lost workers, and what a worker raises.
        """
        self._nodes = nodes
        try:
            for member in members:
                self._start(member)
            self._say()
            while self._shares is None or not self._shares.is_done:
                for told in self._crew.collect(_LOOK_SECONDS):
                    if isinstance(told, Loss):
                        self._lose(told)
                    else:
                        for result in self._hear(told):
                            paused = time.monotonic()
                            with self._work.paused():
                                yield result
                            self._forgive(time.monotonic() - paused)
                self._say()
            self._end_search()
        finally:
            for tally in self._tallies.values():
                self._crew.end(tally.member)
            if self._shares is not None:
                for tally in self._tallies.values():
                    self._write(tally.ended())
                seconds, finished = time.monotonic() - self._intake.begun, self._intake.finished
                kv_bytes, sessions = self._kv_bytes_per_token, self._intake.sessions
                self._write(joined_session(seconds, self._work.seconds, finished, kv_bytes, sessions))

    def _forgive(self, seconds: float) -> None:
        """Do not hold it against the workers that nobody listened for so long."""
        for tally in self._tallies.values():
            tally.progressed += seconds

    def _start(self, member: Member) -> None:
        self._crew.start(member, self._config.scale.start_seconds)
        self._tallies[member.name] = WorkerTally(member)

    def _hear(self, answer: Answer) -> Iterator[SearchResult]:
        """Take a worker's answer and give it the next call."""
        member, tally = answer.member, self._tallies[answer.member.name]
        values = read_answer(answer.text, str(member))
        if answer.method == "hello":
            self._greet(tally, values)
        elif answer.method == "load":
            tally.loaded = time.monotonic()
            tally.state = "waiting"
            tally.hold(int(values["held_bytes"]))
            self._kv_bytes_per_token = int(values["kv_bytes_per_token"])
            if self._shares is not None:
                self._call_begin(member)
            elif self._checking is None:
                self._checking = member
                self._crew.call(member, self._patience, "check", task_text(self._task, self._task.questions))
        elif answer.method == "check":
            self._open(values)
        else:
            tally.state = "searching"
            assert self._shares is not None
            if answer.method == "exchange":
                yield from self._intake.take(tally, self._shares, values)
            self._give(tally)

    @property
    def _patience(self) -> float:
        return self._config.scale.answer_seconds

    def _greet(self, tally: WorkerTally, values: dict[str, Any]) -> None:
        """Let a worker load the models, if it has our version."""
        member = tally.member
        member.node = one_line(str(values["node"]), 80)
        if values["version"] != __version__:
            raise BackendError(
                f"{member} has palmette {one_line(str(values['version']), 40)}, the driver {__version__}: install the "
                f"driver's version on every node"
            )
        tally.clock_offset = float(values["clock"]) - time.time()
        if abs(tally.clock_offset) > _SKEW_SECONDS:
            way = "ahead of" if tally.clock_offset > 0 else "behind"
            shown = format_seconds(abs(tally.clock_offset))
            self.notices.append(f"the clock of {member} is {shown} {way} ours: times of its events are corrected")
        tally.state = "loading"
        self._crew.call(member, self._config.scale.start_seconds, "load")

    def _open(self, values: dict[str, Any]) -> None:
        """Share out the questions that can be asked, now that a worker has told which."""
        askable = [question for question in map(str, values["questions"]) if question in self._questions]
        self._skipped = tuple(map(str, values["skipped"]))
        self.notices += map(str, values["notices"])
        self._room = "null" if values["room"] is None else str(int(values["room"]))
        self._total = len(askable)
        in_flight = self._config.search.questions_in_flight
        self._shares = Shares([question for question in askable if question not in self._done], in_flight)
        self._begin()
        self._intake.begun = time.monotonic()
        self._work.begin()
        for tally in self._tallies.values():
            if tally.state == "waiting":
                self._call_begin(tally.member)

    def _call_begin(self, member: Member) -> None:
        # A judge may look at the questions of its task: one is enough to tell what they are like.
        self._crew.call(member, self._patience, "begin", task_text(self._task, self._task.questions[:1]), self._room)

    def _give(self, tally: WorkerTally) -> None:
        """Send a worker questions, as many as it may have, and wait for its events until its patience ends."""
        assert self._shares is not None
        taken = self._shares.take(tally.member.name, len(self._tallies))
        if taken or not self._shares.of(tally.member.name):
            tally.progressed = time.monotonic()
        left = self._patience - (time.monotonic() - tally.progressed)
        asked = questions_text(self._questions[question] for question in taken)
        self._crew.call(tally.member, max(left, 0.0), "exchange", asked)

    def _lose(self, loss: Loss) -> None:
        """Take a lost worker's questions back, and start it again where it may be; others go on meanwhile."""
        member, tally = loss.member, self._tallies.pop(loss.member.name)
        who, scale = str(member), self._config.scale
        if self._checking is member and self._shares is None:
            self._checking = None
        self._tokens_of_lost += tally.tokens
        questions = [] if self._shares is None else self._shares.lost(member.name)
        if self._shares is not None:
            self._write(tally.ended(loss.reason))
        if self._shares is not None:
            refuse_deadly(questions, self._shares.losses, scale.restarts)
        came = not (loss.was_late and loss.method in ("hello", "load"))
        again = came and member.lives <= scale.restarts
        reason = loss.reason
        if loss.was_late:
            reason = late_reason(loss.method, scale, len(self._crew.members), self._demand, self._nodes())
        went = f"{count_of(len(questions), 'question')} will be asked again" if questions else "it had no questions"
        self.notices.append(f"{who} is lost: {reason}; {went}" + ("" if again else "; it is not started again"))
        if again:
            self._start(member)
        elif not self._tallies:
            raise BackendError(
                f"no worker is left, the last was {who}: {reason}. {self._intake.finished + len(self._done)} of "
                f"{self._total} questions are finished and kept"
            )
        self._recheck()

    def _recheck(self) -> None:
        """Let another worker check the questions where the one that did so is gone."""
        waiting = [tally.member for tally in self._tallies.values() if tally.state == "waiting"]
        if self._shares is None and self._checking is None and waiting:
            self._checking = waiting[0]
            self._crew.call(waiting[0], self._patience, "check", task_text(self._task, self._task.questions))

    def _end_search(self) -> None:
        """Let every worker that has searched tell what it used; wait for it as long as for any answer."""
        for tally in list(self._tallies.values()):
            if tally.state != "searching":
                continue
            while tally.member.method:
                for told in self._crew.collect(_LOOK_SECONDS):
                    self._last_words(told)
            if tally.member.actor is not None:
                self._crew.call(tally.member, self._patience, "finish")
        while any(tally.member.method == "finish" for tally in self._tallies.values()):
            for told in self._crew.collect(_LOOK_SECONDS):
                self._last_words(told)

    def _last_words(self, told: Answer | Loss) -> None:
        """Record what comes after the last question: events of use. A worker lost now has nothing left to lose."""
        if isinstance(told, Loss):
            return
        tally = self._tallies[told.member.name]
        if self._shares is not None and told.method in ("exchange", "finish"):
            values = read_answer(told.text, str(told.member))
            for _ in self._intake.take(tally, self._shares, values):
                raise RunError(f"{told.member} finished a question after all were finished")

    def _say(self) -> None:
        if self._listener is None:
            return
        shares = self._shares
        workers = tuple(
            tally.progress(0 if shares is None else len(shares.of(name))) for name, tally in self._tallies.items()
        )
        tokens = self._tokens_of_lost + sum(tally.tokens for tally in self._tallies.values())
        done = len(self._done) + self._intake.finished
        progress = Progress(done, self._total, tokens, self._skipped, tuple(self.notices), workers)
        with telling("progress listener", name_of(self._listener), "a call", RunError):
            self._listener(progress)
