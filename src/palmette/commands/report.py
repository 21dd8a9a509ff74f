"""`palmette report`: writes one self-contained HTML page about runs, sweeps or training runs."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.commands import flags
from palmette.errors import ConfigError, PalmetteError, RunError
from palmette.units import one_line, one_line_path

if TYPE_CHECKING:
    from palmette.search.rejudge import Rejudge
    from palmette.settings import Config, TaskSettings

MOST_QUESTIONS = 2_000
"""Questions that are made again for the report of a run that may come from anywhere."""

MOST_CHECK_SECONDS, MOST_JUDGING_SECONDS = 5.0, 300.0
"""How long such a run's answers are judged again, each and all together."""


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: in the run's folder, for several runs here.")
    ] = None,
    trust: flags.Trust = False,
) -> None:
    """Write one self-contained HTML page about runs: tables, plots, every tree; of training runs curves and samples."""
    from palmette.report.compare import compare
    from palmette.report.page import write_page
    from palmette.report.training.page import is_training, write_training_page
    from palmette.run.sweep import PLAN

    named = [run for folder in folders for run in (_cells(folder) if (folder / PLAN).is_file() else [folder])]
    runs = list({run.resolve(): run for run in named}.values())
    page = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    trained = [run for run in runs if is_training(run)]
    if trained and len(trained) < len(runs):
        other = next(run for run in runs if run not in trained)
        raise ConfigError(f"{trained[0]} is a training run, {other} is none: make a report of each kind")
    if trained:
        write_training_page(trained, page)
    else:
        write_page(compare(runs, rejudging(trusted=trust)), page)
    print(one_line_path(page))


def _cells(folder: Path) -> list[Path]:
    from palmette.event_log import FILE_NAME
    from palmette.run.sweep import open_sweep

    if begun := [path for path in open_sweep(folder).folders() if (path / FILE_NAME).is_file()]:
        return begun
    raise RunError(f"{folder} is a sweep of which no run was begun; begin with: palmette sweep --resume {folder}")


def rejudging(*, trusted: bool = False) -> "Callable[[Config], Rejudge]":
    """Return who judges a run's answers again, each task loaded once.

    A run may outlive its task: where that, or its judge, cannot be loaded any more, its answers are read, but not
    judged again. A run's folder may come from anywhere: unless it is `trusted`, no `package.module:name` is imported,
    no more than `MOST_QUESTIONS` are made again, and answers are judged for `MOST_CHECK_SECONDS` each.
    """
    from palmette.run.search import judge_of
    from palmette.score.judge import load_judge
    from palmette.search.rejudge import Rejudge
    from palmette.tasks.load import load_task
    from palmette.tasks.task import OWN_QUESTIONS

    built: dict[str, Rejudge] = {}
    most_seconds = math.inf if trusted else MOST_JUDGING_SECONDS

    def rejudge_of(config: "Config") -> Rejudge:
        key = config.task.model_dump_json()
        if key in built:
            return built[key]
        is_gym = config.task.name.startswith("rg:")
        try:
            _check_task(config.task, trusted=trusted)
            task = load_task(config.task)
            built[key] = Rejudge(
                judge_of(_hurried(config, trusted=trusted), task), task.questions, most_seconds=most_seconds
            )
        except PalmetteError as error:
            if config.task.name != OWN_QUESTIONS:  # Nobody expects those to be loaded again.
                print(f"palmette: answers are not judged again: {one_line(str(error))}", file=sys.stderr)
            built[key] = Rejudge(load_judge("gym" if is_gym else "math", config.task), ())
        return built[key]

    return rejudge_of


def _hurried(config: "Config", *, trusted: bool) -> "Config":
    seconds = config.task.verify_seconds if trusted else min(config.task.verify_seconds, MOST_CHECK_SECONDS)
    return config.model_copy(update={"task": config.task.model_copy(update={"verify_seconds": seconds})})


def _check_task(settings: "TaskSettings", *, trusted: bool) -> None:
    """Raise RunError for a task whose loading could run code that a stranger chose, or would not end."""
    from palmette import registry
    from palmette.tasks.load import FILE_SOURCE, source_of

    source = source_of(settings.name)
    if source == FILE_SOURCE and os.path.exists(settings.name) and not os.path.isfile(settings.name):
        raise RunError(f"{settings.name} is not a regular file")  # Reading a device or a pipe may never end.
    if trusted:
        return
    own = [name for name in (source, settings.judge) if name is not None and registry.is_reference(name)]
    if own:
        raise RunError(f"importing {own[0]} runs its code: add --trust if the run is yours")
    asked = settings.skip + settings.questions
    if source != FILE_SOURCE and asked > MOST_QUESTIONS:
        raise RunError(f"the task has {asked:,} questions to make: add --trust if the run is yours")
