"""`palmette train`: trains a policy on a task by reinforcement learning, within the memory there is."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.commands import flags
from palmette.commands.training.training_result import stopped, tell_finished, tell_result
from palmette.commands.training.training_run import Page
from palmette.commands.training.training_table import TrainingTable
from palmette.events import Evaluated
from palmette.units import count_of, format_count, one_line, one_line_path

if TYPE_CHECKING:
    from palmette.settings import Config


def train(
    run: flags.RunFile = None,
    config_file: flags.ConfigFile = None,
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
    from palmette.run.training_folder import config_of

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
    with redirect_stdout(sys.stderr):  # What is printed where one's own code is imported.
        config, goes_on = config_of("train", flags.one_file(run, config_file), overrides, resume)
    if dry_run:
        _preview(config)
        return
    _train(config, goes_on, as_json=as_json)


def _train(config: "Config", goes_on: Path | None, *, as_json: bool) -> None:
    from palmette.run.folder import anchored, new_folder
    from palmette.run.train import TrainingRun
    from palmette.run.training_folder import finished_model

    if goes_on is not None and (finished := finished_model("train", config, goes_on)) is not None:
        tell_finished(config, goes_on, finished, "--updates", as_json=as_json)
        return
    folder = goes_on or new_folder(config, f"{config.train.algorithm}-{Path(config.policy.model).name}")
    config = anchored(config)
    print(_cost(config, folder), file=sys.stderr)
    table = TrainingTable(config.train.updates)
    page = Page(folder)
    try:
        # What reward functions print goes to stderr: stdout has the result alone, for --json and for scripts.
        with redirect_stdout(sys.stderr), TrainingRun(config, folder) as training, table:
            for note in training.notes:
                print(one_line(note, 300), file=sys.stderr)
            if goes_on is not None:
                print(f"goes on after update {training.progress.update}", file=sys.stderr)
            training.listen(table.tokens)
            for event in training.updates():
                table.show(event)
                if isinstance(event, Evaluated):
                    page.write_if_cheap()
            last = training.last_checkpoint()
        trained = folder / last if last is not None else None
    except KeyboardInterrupt:
        raise stopped("train", folder, table.last_update) from None
    tell_result(config, folder, trained, table.summary(), as_json=as_json)
    page.write()


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
    from palmette.commands.training.training_table import batch_lines, cost_lines
    from palmette.run.train import TrainingRun

    show_plan(config, train=True, server="sglang", predict=False, as_json=False, page=None)
    console = Console()
    with TemporaryDirectory() as folder, TrainingRun(config, Path(folder)) as training:
        for note in training.notes:
            print(one_line(note, 300), file=sys.stderr)
        done = training.preview()
        for line in (*batch_lines(done), *cost_lines(done, config.train.updates)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
