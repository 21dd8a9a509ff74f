"""`palmette train-prm`: trains a process reward model on labels of steps, from a file or made by rollouts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from palmette.commands import flags
from palmette.commands.training.row_training import train_rows


def train_prm(
    run: flags.RunFile = None,
    config_file: flags.ConfigFile = None,
    policy: Annotated[str | None, typer.Option(help="Model whose body gets a scalar head, and which solves.")] = None,
    data: Annotated[str | None, typer.Option(help="JSONL or parquet file of prompt, completions and labels.")] = None,
    questions: Annotated[int | None, typer.Option(help="Instead of a file: how many questions to label.")] = None,
    task: flags.TaskName = None,
    epochs: Annotated[int | None, typer.Option(help="How often all rows are learned from.")] = None,
    seed: flags.Seed = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; one that was stopped goes on.")] = None,
    settings: flags.Settings = None,
    devices: flags.Devices = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Train a reward model that scores steps; stopped at any moment, the same command goes on."""
    from palmette.run.training_folder import config_of

    given: dict[str, Any] = {
        "policy.model": policy,
        "prm.data": data,
        "prm.questions": questions,
        "task.name": task,
        "prm.epochs": epochs,
        "seed": seed,
        "out": out,
        "memory.devices": devices,
    }
    config, goes_on = config_of(
        "train-prm", flags.one_file(run, config_file), flags.overrides_of(given, settings), resume
    )
    train_rows("prm", config, goes_on, as_json=as_json)
