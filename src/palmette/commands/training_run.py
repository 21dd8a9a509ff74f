"""What the commands that train have in common: the folder of a run that is new or goes on, its result, its report."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from palmette.errors import ConfigError, RunError, StoppedError
from palmette.units import one_line, one_line_path

if TYPE_CHECKING:
    from palmette.settings import Config


def config_of(
    command: str,
    file: Path | None,
    overrides: dict[str, Any],
    resume: Path | None,
    complete: Callable[["Config"], "Config"],
) -> tuple["Config", Path | None]:
    """Return the run's config and the folder of a run that goes on, None for a new run.

    A run goes on with `resume`, or if the folder that the config names holds one. `complete` returns the config as it
    is recorded, and raises for one that cannot be trained. Raises RunError where a run would go on with other settings,
    or was started by another command than this one.
    """
    from palmette.config import load_config
    from palmette.event_log import FILE_NAME
    from palmette.run.folder import anchored, check_command, run_config
    from palmette.run.training_checks import check_same_run

    if resume is not None:
        if file is not None:
            raise ConfigError(f"--resume continues a run with the config it has: leave {file} out")
        check_command(resume, command)
        recorded = complete(anchored(run_config(resume)))
        config = complete(anchored(load_config(recorded, overrides))) if overrides else recorded
        check_same_run(resume, recorded, config)
        return config, resume
    config = complete(load_config(file, overrides))
    if config.out is not None and (Path(config.out) / FILE_NAME).exists():
        folder = Path(config.out)
        check_command(folder, command)
        config = complete(anchored(config))
        check_same_run(folder, complete(anchored(run_config(folder))), config)
        return config, folder
    return config, None


def result_of(config: "Config", trained: Path | None) -> dict[str, str]:
    """Return what was trained by the names of flags and settings: the policy, or with LoRA its base and the adapter."""
    if config.train.method == "lora" and trained is not None:
        return {"policy": config.policy.model, "adapter": str(trained)}
    return {"policy": str(trained)}


def result_lines(config: "Config", trained: Path | None) -> list[str]:
    """Return lines that say where the trained policy is, and with LoRA how to search with it."""
    if trained is None:
        return []
    if config.train.method != "lora":
        return [f"policy  {one_line_path(trained)}"]
    flags = f"--policy {quote(config.policy.model)} --set policy.adapter={quote(str(trained))}"
    return [f"adapter {one_line_path(trained)}", f"search  palmette search {one_line(flags, 4000)}"]


def stopped(command: str, folder: Path, update: int | None) -> StoppedError:
    """Return the error of a run that was stopped after so many updates, with what it will go on from."""
    from palmette.event_log import FILE_NAME

    again = f"palmette {command} --resume {quote(str(folder))}"
    if not (folder / FILE_NAME).exists():
        return StoppedError("stopped before anything was recorded: the same command starts it again")
    after = f"stopped after update {update}" if update is not None else "stopped"
    last = _last_update(folder)
    if last is None:
        return StoppedError(f"{after}, before the first checkpoint: {again} starts from the beginning")
    return StoppedError(f"{after}; the last checkpoint is update {last}: {again} goes on from there")


def finished_checkpoint(folder: Path, updates: int) -> Path | None:
    """Return the last checkpoint of a run that has made all its updates; None if it has not.

    Its files are hashed and none is loaded. None, too, for a checkpoint that is damaged or of another run.
    """
    from palmette.event_log import read_events
    from palmette.events import RunStarted
    from palmette.run.learning_run import CHECKPOINTS
    from palmette.train.checkpoints.manifest import read_manifest
    from palmette.train.checkpoints.store import TRAINING_FILE, CheckpointStore

    last = _last_update(folder)
    if last is None or last < updates:
        return None
    checkpoint = CheckpointStore(folder / CHECKPOINTS, keep=1).path(last)
    try:
        manifest = read_manifest(checkpoint, needs=TRAINING_FILE)
    except RunError:
        return None
    first = next(read_events(folder), None)
    is_own = isinstance(first, RunStarted) and first.run in ("", manifest.get("run"))
    return checkpoint if is_own else None


def _last_update(folder: Path) -> int | None:
    from palmette.run.learning_run import CHECKPOINTS
    from palmette.train.checkpoints.store import CheckpointStore

    return max(CheckpointStore(folder / CHECKPOINTS, keep=1).updates(), default=None)


class Page:
    """The report of a run that goes on. `path` is for messages: relative where the folder was given so."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "report.html"
        self._folder = folder.absolute()
        self._written = time.monotonic()
        self._seconds = 0.0

    def write(self) -> None:
        """Write the page of everything that is recorded. Raises RunError where it cannot be written."""
        from palmette.report.training.page import write_training_page

        begun = time.monotonic()
        write_training_page([self._folder], self._folder / self.path.name)
        self._written = time.monotonic()
        self._seconds = self._written - begun

    def write_if_cheap(self) -> None:
        """Write the page if that takes less than 2% of the time since it was written last; tell if it cannot be."""
        if self._seconds < 0.02 * (time.monotonic() - self._written):
            try:
                self.write()
            except RunError as error:
                print(f"palmette: {one_line(str(error), 300)}", file=sys.stderr)
