"""`palmette report`: writes one self-contained HTML page about runs or sweeps."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.errors import PalmetteError, RunError
from palmette.units import one_line

if TYPE_CHECKING:
    from palmette.search.rejudge import Rejudge
    from palmette.settings import Config


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of runs or sweeps.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: in the run's folder, for several runs here.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs or sweeps: tables, plots, every tree."""
    from palmette.report.compare import compare
    from palmette.report.page import write_page
    from palmette.run.sweep import PLAN

    named = [run for folder in folders for run in (_cells(folder) if (folder / PLAN).is_file() else [folder])]
    runs = list({run.resolve(): run for run in named}.values())
    default = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    print(write_page(compare(runs, rejudging()), out or default))


def _cells(folder: Path) -> list[Path]:
    from palmette.event_log import FILE_NAME
    from palmette.run.sweep import open_sweep

    if begun := [path for path in open_sweep(folder).folders() if (path / FILE_NAME).is_file()]:
        return begun
    raise RunError(f"{folder} is a sweep of which no run was begun; begin with: palmette sweep --resume {folder}")


def rejudging(*, imports: bool = False) -> "Callable[[Config], Rejudge]":
    """Return who judges a run's answers again, each task loaded once.

    A run may outlive its task: where that, or its judge, cannot be loaded any more, its answers are read, but not
    judged again. Without `imports` no `package.module:name` is imported: a run's folder may come from anywhere. With
    it they are, for a run that this process has just searched.
    """
    from palmette import registry
    from palmette.run.search import judge_of
    from palmette.score.judge import load_judge
    from palmette.search.rejudge import Rejudge
    from palmette.tasks.load import load_task
    from palmette.tasks.task import OWN_QUESTIONS

    built: dict[str, Rejudge] = {}

    def rejudge_of(config: "Config") -> Rejudge:
        key = config.task.model_dump_json()
        if key in built:
            return built[key]
        is_gym = config.task.name.startswith("rg:")
        own = [name for name in (config.task.name, config.task.judge) if registry.is_reference(name)]
        try:
            if own and not is_gym and not imports:
                raise RunError(f"{own[0]} is not imported for a report; `palmette evaluate` does")
            task = load_task(config.task)
            built[key] = Rejudge(judge_of(config, task), task.questions)
        except PalmetteError as error:
            if config.task.name != OWN_QUESTIONS:  # Nobody expects those to be loaded again.
                print(f"palmette: answers are not judged again: {one_line(str(error))}", file=sys.stderr)
            built[key] = Rejudge(load_judge("gym" if is_gym else "math", config.task), ())
        return built[key]

    return rejudge_of
