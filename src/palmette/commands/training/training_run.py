"""What the commands that train have in common: the folder of a run that is new or goes on, and its report."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import ConfigError, RunError
from palmette.units import one_line

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
