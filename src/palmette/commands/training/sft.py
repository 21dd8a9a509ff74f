"""`palmette sft`: trains a policy on answers from a file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from palmette.commands import flags
from palmette.commands.training.row_training import train_rows


def sft(
    run: flags.RunFile = None,
    config_file: flags.ConfigFile = None,
    policy: flags.Policy = None,
    data: Annotated[
        str | None, typer.Option(help="JSONL or parquet file of prompt and completion, or of messages.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How often all rows are learned from.")] = None,
    seed: flags.Seed = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; one that was stopped goes on.")] = None,
    settings: flags.Settings = None,
    devices: flags.Devices = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Train a policy on the answers of a file; stopped at any moment, the same command goes on."""
    from palmette.run.training_folder import config_of

    given: dict[str, Any] = {
        "policy.model": policy,
        "sft.data": data,
        "sft.epochs": epochs,
        "seed": seed,
        "out": out,
        "memory.devices": devices,
    }
    config, goes_on = config_of("sft", flags.one_file(run, config_file), flags.overrides_of(given, settings), resume)
    train_rows("sft", config, goes_on, as_json=as_json)
