"""Runs training on rows and shows it: what `palmette sft` and `palmette train-prm` have in common."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from palmette.commands.training.training_result import stopped, tell_finished, tell_result
from palmette.commands.training.training_run import Page
from palmette.commands.training.training_table import ROW_COLUMNS, TrainingTable
from palmette.events import RowsTested
from palmette.units import one_line, one_line_path

if TYPE_CHECKING:
    from palmette.run.row_checks import Table
    from palmette.run.training_folder import Command
    from palmette.settings import Config

_COMMANDS: "dict[Table, Command]" = {"sft": "sft", "prm": "train-prm"}


def train_rows(table: "Table", config: "Config", goes_on: Path | None, *, as_json: bool) -> None:
    """Train on rows in a new folder, or go on in this one; show updates, tests and where everything is."""
    from palmette.run.folder import anchored, new_folder
    from palmette.run.train_rows import PrmRun, SftRun
    from palmette.run.training_folder import finished_model

    if goes_on is not None and (finished := finished_model(_COMMANDS[table], config, goes_on)) is not None:
        tell_finished(config, goes_on, finished, "--epochs", as_json=as_json, reward=table == "prm")
        return
    folder = goes_on or new_folder(config, f"{table}-{Path(config.policy.model).name}")
    print(f"events and checkpoints in {one_line_path(folder)}", file=sys.stderr)
    page = Page(folder)
    shown = TrainingTable(0, ROW_COLUMNS)
    try:
        kind = SftRun if table == "sft" else PrmRun
        with kind(anchored(config), folder, _labeled) as training, shown:
            shown.updates = training.config.train.updates
            for note in training.notes:
                print(one_line(note, 300), file=sys.stderr)
            if goes_on is not None:
                print(f"goes on after update {training.progress.update}", file=sys.stderr)
            for event in training.updates():
                shown.show(event)
                if isinstance(event, RowsTested):
                    page.write_if_cheap()
            last = training.last_checkpoint()
        trained = folder / last if last is not None else None
    except KeyboardInterrupt:
        raise stopped(_COMMANDS[table], folder, shown.last_update) from None
    tell_result(config, folder, trained, shown.summary(), as_json=as_json, reward=table == "prm")
    page.write()


def _labeled(done: int, total: int) -> None:
    print(f"steps of {done} of {total} questions are labeled", file=sys.stderr, flush=True)
