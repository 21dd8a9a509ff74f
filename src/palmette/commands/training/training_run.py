"""The report of a training run that goes on."""

import sys
import time
from pathlib import Path

from palmette.errors import RunError
from palmette.units import one_line


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
