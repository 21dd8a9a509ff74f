"""One search over a task's questions: metered, guarded, recorded, its results yielded as they are ready."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from palmette import __version__
from palmette.backends.backend import Backend, OnDevice, TellsNotices, TellsTokens
from palmette.errors import ConfigError, RunError
from palmette.event_log import EventLog
from palmette.events import Event, RunStarted, Session
from palmette.memory.device import limit_device_memory
from palmette.memory.meter import Meter
from palmette.own_parts import name_of, telling
from palmette.planner.run_plan import planned_memory
from palmette.run.folder import finished_questions, recorded_values
from palmette.run.parts import Askable, Parts, check_questions, limits_of
from palmette.run.server_use import metrics_of, used
from palmette.run.watch import Watch
from palmette.score.judge import Judge, load_judge
from palmette.search.checked import calls_of, kv_bytes_per_token
from palmette.search.cluster import by_meaning
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.search.result import SearchResult, finished_event, judge_tree
from palmette.settings import Config, TaskSettings
from palmette.settings.models import FORMATS
from palmette.tasks.task import Question, Task
from palmette.units import one_line


@dataclass(frozen=True)
class WorkerProgress:
    """How far one worker is: questions finished and in flight, tokens written, bytes held, and what it does now."""

    name: str
    node: str
    state: str
    done: int
    in_flight: int
    tokens: int
    held_bytes: int


@dataclass(frozen=True)
class Progress:
    """How far a search is: questions finished of all that can be asked, and tokens written for it since it was begun.

    `skipped` has the reason for each question that cannot be asked; with `task.unaskable` refuse there is none.
    `notices` are what backend and scorer have to tell before the search, and on workers what happened to them; there
    `workers` has each of them.
    """

    done: int
    total: int
    tokens: int
    skipped: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    workers: tuple[WorkerProgress, ...] = ()


Listener = Callable[[Progress], None]


def judge_of(config: Config, task: Task) -> Judge:
    """Return who judges the task's answers: the one that `task.judge` names, or the task's own.

    Raises ConfigError for `gym` over questions that no generator of reasoning-gym made: it could judge none of them.
    """
    part = task.judge if config.task.judge == "auto" else config.task.judge
    foreign = next((question for question in task.questions if "generator" not in question.key), None)
    if part == "gym" and foreign is not None:
        raise ConfigError(
            f"task.judge: gym judges the questions of rg:NAME tasks, and question {one_line(foreign.id, 80)} is none: "
            f"give math, or leave it at auto"
        )
    return load_judge(part, config.task)


def config_for(config: Config, task: Task) -> Config:
    """Return the config of a run over this task, recorded or not: its table `task` is the one the task was loaded with.

    Who judges, for how long, and the text that ends a solution are the config's where it sets them.
    """
    if task.settings is None:
        asked = config.task.model_copy(update={"name": task.name, "questions": len(task.questions)})
    else:
        unset = TaskSettings()
        told = {key: getattr(config.task, key) for key in ("judge", "stop", "verify_seconds", "unaskable")}
        changed = {key: value for key, value in told.items() if value != getattr(unset, key)}
        asked = task.settings.model_copy(update=changed)
    return config.model_copy(update={"task": asked})


def search_task(
    config: Config, parts: Parts, task: Task, meter: Meter, *, listener: Listener | None = None
) -> Iterator[SearchResult]:
    """Search all questions of a task; nothing is written anywhere."""
    return _search(config, parts, task, meter, lambda event: None, set(), listener)


def search_into(
    folder: Path,
    config: Config,
    parts: Parts,
    task: Task,
    meter: Meter,
    *,
    is_new: bool = False,
    askable: Askable | None = None,
    listener: Listener | None = None,
) -> Iterator[SearchResult]:
    """Search what the folder's events do not show as finished, and record it there. Safe to stop and call again.

    The effective config is the first event. A folder that `is_new` must be empty still. `askable` is what
    `check_questions` returned, None if it was not called yet.
    """
    with EventLog(folder) as log:
        if is_new and not log.is_empty:
            raise RunError(f"{folder} was taken by another process while this one loaded; choose another --out")
        done: set[str] = set()
        if log.is_empty:
            log.write(RunStarted(__version__, recorded_values(config)))
        else:
            done = finished_questions(folder, task)
        yield from _search(config, parts, task, meter, log.write, done, listener, askable)


def make_meter(config: Config, device: str = "cpu") -> Meter:
    """Return a meter that knows what the plan expects of each phase."""
    planned = planned_memory(config)
    return Meter(
        device,
        sample_seconds=config.memory.sample_seconds,
        planned_bytes=planned.by_phase,
        limit_bytes=planned.limit_bytes,
    )


def _search(
    config: Config,
    parts: Parts,
    task: Task,
    meter: Meter,
    write: Callable[[Event], None],
    done: set[str],
    listener: Listener | None,
    askable: Askable | None = None,
) -> Iterator[SearchResult]:
    askable = askable or check_questions(config, task, parts.backend, parts.scorer)
    judge = judge_of(config, task)
    notices = (*unfamiliar(config), *notices_of(parts))
    told = Told(len(done), len(askable.questions), askable.skipped, notices, listener)
    if told.done == told.total:
        told.say()
        return
    questions = [question for question in askable.questions if question.id not in done]
    yield from searched(config, parts, task, questions, askable.room, judge, meter, write, told)


def notices_of(parts: Parts) -> tuple[str, ...]:
    """Return what backend and scorer have to tell before a search."""
    told_by: tuple[object, ...] = (parts.backend, parts.scorer)
    told = (notice for part in told_by if isinstance(part, TellsNotices) for notice in part.notices)
    return tuple(dict.fromkeys(told))


def unfamiliar(config: Config) -> Iterator[str]:
    """Yield how to ask a policy of the zoo that knows one task only, where it is asked another one."""
    known, task = FORMATS.get(config.policy.model), config.task
    if known is None or config.policy.adapter or not (task.name in FORMATS.values() or task.name.startswith("rg:")):
        return
    asked_plain = task.name != "words" or task.generator.get("plain") is True
    if task.name != known or not asked_plain:
        told = "" if known != "words" else " --set task.grade=1 --set 'task.generator={plain: true}'"
        kind = f"the task {known}" if known != "words" else "the task words in plain questions of grades 1 and 2"
        yield f"{config.policy.model} knows {kind} only: --task {known}{told}"


def searched(
    config: Config,
    parts: Parts,
    task: Task,
    questions: Iterable[Question],
    room: int | None,
    judge: Judge,
    meter: Meter,
    write: Callable[[Event], None],
    told: "Told",
) -> Iterator[SearchResult]:
    """Search questions as they come, each tree with so much `room`; write their events and what the search has used.

    `questions` are taken one by one, when there is place for another: the search ends when there is none to take and
    none in flight.
    """
    backend, scorer = parts.backend, parts.scorer
    begun, finished = time.monotonic(), 0
    policy_calls, reward_calls = calls_of("backend", backend), calls_of("scorer", scorer) if scorer else 0
    recorder, servers = Recorder(write), metrics_of(backend)
    with ExitStack() as stack:
        device = backend.device if isinstance(backend, OnDevice) else "cpu"
        if limit_device_memory(device, config.memory.inference_share):
            meter = stack.enter_context(make_meter(config, device))
        stack.enter_context(meter.recording(write))
        watch = Watch(meter, config.memory, backend, scorer)
        # What a server has written since the last call says nothing of how many rows its forward passes had.
        ticked = watch.occupancy.tick if isinstance(backend, OnDevice) else None
        stack.enter_context(told.listening_to(backend, ticked))
        strategy, clusterer = config.search.build_strategy(), None
        if parts.embedder is not None and "clusters" in strategy.uses:
            clusterer = by_meaning(watch.embedder(parts.embedder), config.embedder.cut)
        try:
            with meter.phase("search"):
                for growth in search(
                    questions,
                    watch.backend,
                    watch.scorer,
                    watch.strategy(strategy),
                    limits_of(config.search, task, config.task.stop, room),
                    seed=config.seed,
                    aggregate=config.search.aggregate,
                    observer=recorder,
                    clusterer=clusterer,
                ):
                    result = judge_tree(growth, judge, config.search)
                    write(finished_event(result))
                    finished += 1
                    told.finished(result)
                    yield result
        finally:
            write(watch.occupancy.event())
            write(
                Session(
                    seconds=round(time.monotonic() - begun, 3),
                    policy_calls=max(0, calls_of("backend", backend) - policy_calls),
                    reward_calls=max(0, (calls_of("scorer", scorer) if scorer else 0) - reward_calls),
                    questions=finished,
                    kv_bytes_per_token=kv_bytes_per_token(backend),
                    peak_kv_tokens=recorder.peak_kv_tokens,
                    kv_as_held=True,
                    servers=used(servers, metrics_of(backend)),
                )
            )


class Told:
    """Counts what is finished and written, and tells a listener."""

    def __init__(
        self, done: int, total: int, skipped: tuple[str, ...], notices: tuple[str, ...], listener: Listener | None
    ) -> None:
        self.done = done
        self.total = total
        self._skipped = skipped
        self._notices = notices
        self._tokens = 0
        self._counted_by_backend = False
        self._listener = listener
        self.say()

    def say(self) -> None:
        """Tell the listener how far the search is."""
        if self._listener is not None:
            with telling("progress listener", name_of(self._listener), "a call", RunError):
                self._listener(Progress(self.done, self.total, self._tokens, self._skipped, self._notices))

    def finished(self, result: SearchResult) -> None:
        """Count a finished question."""
        self.done += 1
        if not self._counted_by_backend:
            self._tokens += result.tokens
        self.say()

    def listening_to(self, backend: Backend, ticked: Callable[[int], None] | None) -> ExitStack:
        """Count tokens as the backend writes them, until the stack is closed; where it does not tell, per question.

        `ticked` is called with the tokens of each tick.
        """
        stack = ExitStack()

        def written(tokens: int) -> None:
            self._tokens += tokens
            if ticked is not None:
                ticked(tokens)
            self.say()

        if isinstance(backend, TellsTokens):
            self._counted_by_backend = True
            backend.on_tokens = written
            stack.callback(setattr, backend, "on_tokens", None)
        return stack
