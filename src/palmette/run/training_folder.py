"""The folder of a training run: new, to go on in, or finished. Loads no model and imports no torch before it must."""

from pathlib import Path
from typing import Any, Literal

from palmette.config import load_config
from palmette.errors import ConfigError, RunError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import RunStarted, UpdateDone
from palmette.run.folder import anchored, check_command, run_config
from palmette.settings import Config

Command = Literal["train", "sft", "train-prm"]
"""What trains: on a task, on rows of answers, on labels of steps."""
TABLES: dict[Command, Literal["sft", "prm"]] = {"sft": "sft", "train-prm": "prm"}
"""The table of settings that the rows of a command are told in."""


def complete(command: Command, config: Config) -> Config:
    """Return the config as it is recorded. Raises ConfigError for one that cannot be trained."""
    from palmette.run.row_checks import check_rows_config, row_config
    from palmette.run.training_checks import check_training, training_config

    if command == "train":
        config = training_config(config)
        check_training(config)
        return config
    config = row_config(config, TABLES[command])
    check_rows_config(config, TABLES[command])
    return config


def config_of(
    command: Command,
    base: Config | str | Path | None,
    overrides: dict[str, Any],
    resume: Path | None = None,
    *,
    given_by: str = "command line",
) -> tuple[Config, Path | None]:
    """Return the run's config and the folder of a run that goes on, None for a new run.

    A run goes on with `resume`, or if the folder that the config names holds one. Raises RunError where a run would go
    on with other settings, or was started by another command than this one.
    """
    from palmette.run.training_checks import check_same_run

    if resume is not None:
        if base is not None:
            raise ConfigError(f"--resume continues a run with the config it has: leave {base} out")
        check_command(resume, command)
        recorded = complete(command, anchored(run_config(resume)))
        config = complete(command, anchored(load_config(recorded, overrides))) if overrides else recorded
        check_same_run(resume, recorded, config)
        return config, resume
    config = complete(command, load_config(base, overrides, given_by=given_by))
    if config.out is not None and (Path(config.out) / FILE_NAME).exists():
        folder = Path(config.out)
        check_command(folder, command)
        config = complete(command, anchored(config))
        check_same_run(folder, complete(command, anchored(run_config(folder))), config)
        return config, folder
    return config, None


def finished_model(command: Command, config: Config, folder: Path) -> Path | None:
    """Return the last checkpoint of a run that has done all that its config asks for, None if it has not."""
    from palmette.run.row_checks import data_of

    if command == "train":
        return finished_checkpoint(folder, updates=config.train.updates)
    return finished_checkpoint(folder, epochs=data_of(config, TABLES[command]).epochs)


def finished_checkpoint(folder: Path, *, updates: int | None = None, epochs: int | None = None) -> Path | None:
    """Return the last checkpoint of a run that has made all its updates, or epochs of rows; None if it has not.

    Its files are hashed and none is loaded. None, too, for a checkpoint that is damaged or of another run.
    """
    from palmette.run.learning_run import CHECKPOINTS
    from palmette.train.checkpoints.manifest import read_manifest
    from palmette.train.checkpoints.store import TRAINING_FILE, CheckpointStore

    last = last_update(folder)
    if last is None or (updates is not None and last < updates):
        return None
    checkpoint = CheckpointStore(folder / CHECKPOINTS, keep=1).path(last)
    try:
        manifest = read_manifest(checkpoint, needs=TRAINING_FILE)
    except RunError:
        return None
    made = 0.0
    for event in read_events(folder):
        if isinstance(event, RunStarted) and event.run not in ("", manifest.get("run")):
            return None
        if isinstance(event, UpdateDone) and event.update == last:
            made = event.numbers.get("epoch", 0.0)
    return checkpoint if epochs is None or made >= epochs else None


def last_update(folder: Path) -> int | None:
    """Return the update of a run's last checkpoint."""
    from palmette.run.learning_run import CHECKPOINTS
    from palmette.train.checkpoints.store import CheckpointStore

    return max(CheckpointStore(folder / CHECKPOINTS, keep=1).updates(), default=None)
