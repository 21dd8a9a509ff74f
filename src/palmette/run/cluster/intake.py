"""Takes what workers tell: checks it, writes it into the one log of the run, makes results of finished questions."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from palmette.errors import RunError
from palmette.event_log import decode_event
from palmette.events import (
    Event,
    MemoryTimeline,
    Occupancy,
    OomRetry,
    QuestionFinished,
    QuestionStarted,
    QuestionTimed,
    Reclaimed,
    Session,
    WaveDone,
)
from palmette.run.cluster.result import result_of
from palmette.run.cluster.tally import WorkerTally
from palmette.scale.shares import Shares
from palmette.score.judge import Judge
from palmette.search.result import SearchResult
from palmette.settings import SearchSettings
from palmette.tasks.task import Question
from palmette.units import one_line


class Intake:
    """Calls `write` with every event of the run, those of memory and pace with the worker's name.

    Sessions of workers are kept in `sessions`: the driver writes one for all of them. `begun` is when the search began,
    by the monotonic clock.
    """

    def __init__(
        self,
        questions: Mapping[str, Question],
        judge: Judge,
        settings: SearchSettings,
        write: Callable[[Event], None],
    ) -> None:
        self._questions = questions
        self._judge = judge
        self._settings = settings
        self._write = write
        self.begun = time.monotonic()
        self._growing: dict[str, list[Event]] = {}
        """The events of every question in flight, from its last start on."""
        self.sessions: list[Session] = []
        self.finished = 0

    def take(self, tally: WorkerTally, shares: Shares, values: Mapping[str, Any]) -> Iterator[SearchResult]:
        """Take the answer of one `exchange`; yield the result of each question that is finished by it.

        Raises RunError for anything that a worker has no reason to tell.
        """
        lines, tokens = values["events"], int(values["tokens"])
        if lines or tokens > tally.tokens:
            tally.progressed = time.monotonic()
        tally.tokens = tokens
        tally.hold(int(values["held_bytes"]))
        name = tally.member.name
        for line in lines:
            event = decode_event(str(line), f"an event of {tally.member}")
            if isinstance(event, QuestionStarted | WaveDone | QuestionFinished):
                if event.question not in shares.of(name):
                    told = one_line(event.question, 80)
                    raise RunError(f"{tally.member} told of question {told}, which it was not given")
                result = self._grown(event)
                self._write(event)
                if result is not None:
                    shares.finished(name, event.question)
                    tally.questions += 1
                    self.finished += 1
                    yield result
            elif isinstance(event, Session):
                self.sessions.append(event)
            elif isinstance(event, QuestionTimed):
                began = max(0.0, round(time.monotonic() - self.begun - event.seconds, 3))
                self._write(replace(event, worker=name, began=began))
            elif isinstance(event, MemoryTimeline | Occupancy | OomRetry | Reclaimed):
                began = max(0.0, round(event.began - tally.clock_offset, 3))
                self._write(replace(event, worker=name, began=began))
            else:
                raise RunError(f"{tally.member} told of {event.kind}, which is nothing that workers tell")

    def _grown(self, event: QuestionStarted | WaveDone | QuestionFinished) -> SearchResult | None:
        """Keep an event of a question's tree; return the result with the last one."""
        if isinstance(event, QuestionStarted):
            self._growing[event.question] = []
        events = self._growing.setdefault(event.question, [])
        events.append(event)
        if not isinstance(event, QuestionFinished):
            return None
        del self._growing[event.question]
        return result_of(self._questions[event.question], events, self._judge, self._settings)
