"""`palmette train`: trains a policy on a task by reinforcement learning, within the memory there is."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.commands import flags
from palmette.commands.training_table import TrainingTable
from palmette.errors import ConfigError, RunError, StoppedError
from palmette.events import Evaluated
from palmette.units import count_of, format_count, one_line, one_line_path

if TYPE_CHECKING:
    from palmette.settings import Config


def train(
    run: Annotated[Path | None, typer.Argument(help="YAML file of the run.")] = None,
    policy: flags.Policy = None,
    task: flags.TaskName = None,
    algorithm: Annotated[str | None, typer.Option(help="grpo, dapo, ppo, ..., or package.module:name.")] = None,
    width: Annotated[int | None, typer.Option(help="Responses to each question.")] = None,
    updates: Annotated[int | None, typer.Option(help="How many updates.")] = None,
    seed: flags.Seed = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; one that was stopped goes on.")] = None,
    settings: flags.Settings = None,
    devices: flags.Devices = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, the first batch and what an update costs; train nothing.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Train a policy with verified rewards; stopped at any moment, the same command goes on."""
    given: dict[str, Any] = {
        "policy.model": policy,
        "task.name": task,
        "train.algorithm": algorithm,
        "search.width": width,
        "train.updates": updates,
        "seed": seed,
        "out": out,
        "memory.devices": devices,
    }
    overrides = flags.overrides_of(given, settings)
    config, folder, is_new = _folder_of(run, overrides, resume, dry_run=dry_run)
    if dry_run:
        _preview(config)
        return
    assert folder is not None
    _train(config, folder, is_new=is_new, as_json=as_json)


def _folder_of(
    file: Path | None, overrides: dict[str, Any], resume: Path | None, *, dry_run: bool
) -> tuple["Config", Path | None, bool]:
    """Return the run's config, its folder (None for a dry run), and whether it is a new one."""
    from palmette.config import load_config
    from palmette.event_log import FILE_NAME
    from palmette.run.folder import anchored, new_folder, run_config
    from palmette.run.training_checks import check_same_run, check_training, training_config

    if resume is not None:
        if file is not None:
            raise ConfigError(f"--resume continues a run with the config it has: leave {file} out")
        config = run_config(resume)
        if overrides:
            changed = load_config(config, overrides)
            check_same_run(resume, config, changed)
            config = changed
        return config, resume, False
    config = load_config(file, overrides)
    check_training(training_config(config))
    if dry_run:
        return config, None, True
    if config.out is not None and (Path(config.out) / FILE_NAME).exists():
        folder = Path(config.out)
        check_same_run(folder, run_config(folder), anchored(config))
        return anchored(config), folder, False
    return anchored(config), new_folder(config, f"{config.train.algorithm}-{Path(config.policy.model).name}"), True


def _train(config: "Config", folder: Path, *, is_new: bool, as_json: bool) -> None:
    from palmette.run.train import TrainingRun

    print(_cost(config, folder), file=sys.stderr)
    table = TrainingTable(config.train.updates)
    page = _Page(folder)
    try:
        with TrainingRun(config, folder) as training, table:
            for note in training.notes:
                print(one_line(note, 300), file=sys.stderr)
            if not is_new:
                print(f"goes on after update {training.progress.update}", file=sys.stderr)
            training.listen(table.tokens)
            for event in training.updates():
                table.show(event)
                if isinstance(event, Evaluated):
                    page.write_if_cheap()
            last = training.last_checkpoint()
    except KeyboardInterrupt:
        raise StoppedError(f"stopped; continue with: palmette train --resume {folder}") from None
    if as_json:
        told = {"run": str(folder), "policy": str(last), "report": str(page.path), **table.summary()}
        print(json.dumps(told, indent=2))
    else:
        print(f"run     {one_line_path(folder)}")
        if last is not None:
            print(f"policy  {one_line_path(last)}")
        print(f"report  {one_line_path(page.path)}")
    page.write()


class _Page:
    """The report of a run that goes on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "report.html"
        self._folder = folder
        self._written = time.monotonic()
        self._seconds = 0.0

    def write(self) -> None:
        """Write the page of everything that is recorded. Raises RunError where it cannot be written."""
        from palmette.report.training.page import write_training_page

        begun = time.monotonic()
        write_training_page([self._folder], self.path)
        self._written = time.monotonic()
        self._seconds = self._written - begun

    def write_if_cheap(self) -> None:
        """Write the page if that takes less than 2% of the time since it was written last; tell if it cannot be."""
        if self._seconds < 0.02 * (time.monotonic() - self._written):
            try:
                self.write()
            except RunError as error:
                print(f"palmette: {one_line(str(error), 300)}", file=sys.stderr)


def _cost(config: "Config", folder: Path) -> str:
    """Say what the run may cost at the most, before it starts."""
    train, search = config.train, config.search
    responses = train.questions * search.width
    tokens = train.updates * responses * search.total_tokens
    return (
        f"{count_of(train.updates, 'update')} of {train.algorithm}, {count_of(responses, 'response')} each "
        f"({train.questions} x {search.width}, at most {search.total_tokens} tokens): at most {format_count(tokens)} "
        f"tokens in all; events and checkpoints in {one_line_path(folder)}"
    )


def _preview(config: "Config") -> None:
    """Show the plan, then the first batch with rewards and advantages, and what one update takes."""
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from palmette.commands.plan import show_plan
    from palmette.commands.training_table import batch_lines, cost_lines
    from palmette.run.train import TrainingRun
    from palmette.run.training_checks import training_config

    show_plan(training_config(config), train=True, server="sglang", predict=False, as_json=False, page=None)
    console = Console()
    with TemporaryDirectory() as folder, TrainingRun(config, Path(folder)) as training:
        for note in training.notes:
            print(one_line(note, 300), file=sys.stderr)
        done = training.preview()
        for line in (*batch_lines(done), *cost_lines(done)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
