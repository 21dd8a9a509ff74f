"""One worker: loads the models, searches the questions that it is sent, tells its events. Needs no Ray to be tested."""

import json
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from palmette import __version__
from palmette.event_log import encode_event
from palmette.events import Event, QuestionFinished, QuestionStarted, QuestionTimed
from palmette.memory.device import held_bytes
from palmette.memory.meter import Meter
from palmette.run.cluster.wire import config_of, error_values, questions_of, task_of
from palmette.run.parts import Parts, build_parts, check_questions
from palmette.run.search import Progress, Told, judge_of, make_meter, notices_of, searched
from palmette.search.checked import kv_bytes_per_token
from palmette.settings import Config
from palmette.tasks.task import Question
from palmette.units import parse_bytes

_ANSWER_SECONDS = 1.0
"""How long `exchange` waits for a question to finish: its answer is also the sign that the worker lives."""


def telling(method: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Return the method with its values as JSON; an error is told in them, not raised."""

    @wraps(method)
    def told(*arguments: Any) -> str:
        try:
            return json.dumps(method(*arguments))
        except Exception as error:  # noqa: BLE001  # The driver raises it again.
            return json.dumps(error_values(error))

    return told


def identity() -> dict[str, Any]:
    """Return who this process is: version, machine, process and clock."""
    machine = {"node": platform.node(), "process": os.getpid(), "python": platform.python_version()}
    return {"version": __version__, "clock": time.time(), **machine}


def prepare_process(folder: str, threads: str) -> None:
    """Set what torch reads when it is imported; let parts of one's own be found in the folder that the driver is in."""
    os.environ["OMP_NUM_THREADS"] = threads
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)


class Worker:
    """What every worker has: the texts that it is made with, and an answer to who it is."""

    def __init__(self, config: str, folder: str, threads: str) -> None:
        self._config_text = config
        self._folder = folder
        self._threads = threads

    @telling
    def hello(self) -> dict[str, Any]:
        """Return who this is."""
        return identity()


class SearchWorker(Worker):
    """Searches in a thread of its own, while its methods are called by the driver, one at a time.

    Order of calls: `hello`, `load`, one worker of all `check`, `begin`, then `exchange` over and over, `finish`.
    """

    def __init__(self, config: str, folder: str, threads: str) -> None:
        super().__init__(config, folder, threads)
        self._questions = Arriving()
        self._lines: list[str] = []
        self._began: dict[str, float] = {}
        self._tokens = self._finished = self._told_finished = 0
        self._failed: Exception | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._config: Config
        self._parts: Parts
        self._meter: Meter

    @telling
    def load(self) -> dict[str, Any]:
        """Load the models, unless they do not fit this machine."""
        prepare_process(self._folder, self._threads)
        self._config = config_of(self._config_text)
        self._meter = make_meter(self._config)
        self._meter.__enter__()
        with self._meter.phase("load"):
            self._parts = build_parts(self._config)
        self._meter.reclaim("load", parse_bytes(self._config.memory.reclaim_least))
        return {"held_bytes": held_bytes("cpu"), "kv_bytes_per_token": kv_bytes_per_token(self._parts.backend)}

    @telling
    def check(self, task: str) -> dict[str, Any]:
        """Return which of a task's questions can be asked, why others cannot, and the room of each tree."""
        asked = check_questions(self._config, task_of(task), self._parts.backend, self._parts.scorer)
        questions = [question.id for question in asked.questions]
        notices = list(notices_of(self._parts))
        return {"questions": questions, "skipped": list(asked.skipped), "room": asked.room, "notices": notices}

    @telling
    def begin(self, task: str, room: str) -> dict[str, Any]:
        """Start the search of what `exchange` will bring."""
        asked = task_of(task)
        results = searched(
            self._config,
            self._parts,
            asked,
            self._questions,
            json.loads(room),
            judge_of(self._config, asked),
            self._meter,
            self._write,
            Told(0, 0, (), (), self._count),
        )
        self._thread = threading.Thread(target=self._search, args=(results,), name="palmette-search", daemon=True)
        self._thread.start()
        return {}

    @telling
    def exchange(self, questions: str) -> dict[str, Any]:
        """Take questions; return the events since the last call, at once where a question is finished."""
        self._questions.add(questions_of(questions))
        with self._changed:
            self._changed.wait_for(self._has_news, _ANSWER_SECONDS)
            return self._told()

    @telling
    def finish(self) -> dict[str, Any]:
        """End the search when nothing is in flight; return the last events."""
        self._questions.close()
        assert self._thread is not None
        self._thread.join()
        self._meter.__exit__(None, None, None)
        with self._changed:
            return self._told()

    def _has_news(self) -> bool:
        return self._finished > self._told_finished or self._failed is not None

    def _told(self) -> dict[str, Any]:
        if self._failed is not None:
            raise self._failed
        lines, self._lines = self._lines, []
        self._told_finished = self._finished
        return {"events": lines, "tokens": self._tokens, "held_bytes": held_bytes("cpu")}

    def _search(self, results: Iterator[Any]) -> None:
        try:
            for _ in results:
                self._questions.finished()
        except Exception as error:  # noqa: BLE001  # Told by the next answer.
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _write(self, event: Event) -> None:
        with self._changed:
            self._lines.append(encode_event(event))
            if isinstance(event, QuestionStarted):
                self._began[event.question] = time.monotonic()
            elif isinstance(event, QuestionFinished):
                seconds = round(time.monotonic() - self._began.pop(event.question), 4)
                self._lines.append(encode_event(QuestionTimed(event.question, seconds, event.generated_tokens)))
                self._finished += 1
                self._changed.notify_all()

    def _count(self, progress: Progress) -> None:
        self._tokens = progress.tokens


class Arriving(Iterator[Question]):
    """Questions in the order in which they are sent.

    With nothing to give it stops, and can be asked again; while nothing is in flight it waits for a question, or for
    the end.
    """

    def __init__(self) -> None:
        self._waiting: deque[Question] = deque()
        self._in_flight = 0
        self._is_closed = False
        self._arrived = threading.Condition()

    def add(self, questions: tuple[Question, ...]) -> None:
        """Bring questions."""
        with self._arrived:
            self._waiting.extend(questions)
            self._arrived.notify_all()

    def close(self) -> None:
        """Say that none will come any more."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()

    def finished(self) -> None:
        """Count one of those in flight as finished."""
        with self._arrived:
            self._in_flight -= 1

    def __next__(self) -> Question:
        with self._arrived:
            if not self._in_flight:
                self._arrived.wait_for(lambda: self._waiting or self._is_closed)
            if not self._waiting:
                raise StopIteration
            self._in_flight += 1
            return self._waiting.popleft()
