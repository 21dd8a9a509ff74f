"""A search on workers: the folder is locked, a cluster is reached, questions go out, events come in."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from palmette import __version__
from palmette.errors import RunError
from palmette.event_log import FILE_NAME, EventLog
from palmette.events import Event, RunStarted
from palmette.run.cluster.demand import count_of_workers, demand_of, gpu_notices, own_cores
from palmette.run.cluster.drive import Drive
from palmette.run.cluster.intake import Intake
from palmette.run.cluster.wire import config_text
from palmette.run.cluster.worker import SearchWorker
from palmette.run.folder import finished_questions, recorded_values
from palmette.run.search import Listener, judge_of
from palmette.scale.connect import connected, node_rooms
from palmette.scale.crew import Crew, Member
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.task import Task


def search_on_workers(
    config: Config, task: Task, folder: Path | None, *, is_new: bool = False, listener: Listener | None = None
) -> Iterator[SearchResult]:
    """Search what the folder's events do not show as finished on workers, and record it there; safe to call again.

    As `run.search.search_into`, with the models in the workers. Without a folder nothing is recorded. Where nothing was
    begun in a folder that `is_new`, it is empty again.
    """
    text, judge = config_text(config, task), judge_of(config, task)
    with ExitStack() as stack:
        log = None if folder is None else stack.enter_context(EventLog(folder))
        done: set[str] = set()
        if log is not None and folder is not None:
            if is_new and not log.is_empty:
                raise RunError(f"{folder} was taken by another process while this one loaded; choose another --out")
            stack.callback(_remove_if_empty, log, folder)
            done = set() if log.is_empty else finished_questions(folder, task)

        def write(event: Event) -> None:
            if log is not None:
                log.write(event)

        def begin() -> None:
            if log is not None and log.is_empty:
                log.write(RunStarted(__version__, recorded_values(config)))

        demand = demand_of(config)
        ray = stack.enter_context(connected(config.scale, own_cores()))
        nodes = node_rooms(ray)
        count = count_of_workers(config, demand, nodes)
        made_with = (text, os.getcwd(), str(max(1, int(demand.cpus))))
        crew = Crew(ray, SearchWorker, demand, lambda member: made_with)
        questions = {question.id: question for question in task.questions}
        intake = Intake(questions, judge, config.search, write)
        drive = Drive(config, task, crew, demand, intake, done, begin, write, listener)
        drive.notices += gpu_notices(config, nodes)
        yield from drive.run([Member(str(number)) for number in range(1, count + 1)], lambda: node_rooms(ray))


def _remove_if_empty(log: EventLog, folder: Path) -> None:
    """Remove the file of a run that was never begun: the same command can be given once more."""
    if log.is_empty:
        with suppress(OSError):
            (folder / FILE_NAME).unlink()
