"""Reads training runs, one or several to be compared, and writes their page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palmette.config import recorded_config
from palmette.errors import RunError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import CheckpointWritten, Evaluated, QuestionStarted, RowsTested, RunStarted, UpdateDone
from palmette.report.page import write_html
from palmette.report.training.data import training_data
from palmette.settings import Config

MOST_SAMPLE_BYTES = 8_000_000
"""JSON bytes of the samples of all runs together; each run gets an equal part."""

SCRIPTS = (
    "page.js",
    "axes.js",
    "memory.js",
    "training/curves.js",
    "training/samples.js",
    "training/phases.js",
    "training/start.js",
)
STYLES = ("page.css", "training/page.css")


def is_training(folder: Path) -> bool:
    """Tell whether a run's folder is that of a training run. Raises RunError for a folder that is no run."""
    for event in read_events(folder):
        if isinstance(event, QuestionStarted):
            return False
        if isinstance(event, UpdateDone | Evaluated | RowsTested | CheckpointWritten):
            return True
    return False


def write_training_page(folders: Sequence[Path], path: Path) -> Path:
    """Write the page about training runs to `path` and return `path`. A file that exists is replaced in one step.

    Raises ConfigError if `path` names no file, RunError if it cannot be written or a folder is no run.
    """
    runs = [_read(folder, MOST_SAMPLE_BYTES // len(folders)) for folder in folders]
    return write_html(path, "training/page.html", SCRIPTS, STYLES, {"runs": runs})


def _read(folder: Path, most_sample_bytes: int) -> dict[str, Any]:
    events = read_events(folder)
    first = next(events, None)
    if not isinstance(first, RunStarted):
        raise RunError(f"{folder / FILE_NAME}: the first event is not run_started")
    config = recorded_config(first.config, str(folder / FILE_NAME), imports=False)
    data = training_data(events, most_sample_bytes)
    return {
        "name": folder.resolve().name,
        "config": config.model_dump(mode="json"),
        **_described(config, data),
        **data,
    }


def _described(config: Config, data: dict[str, Any]) -> dict[str, Any]:
    """Return how and on what a run trains, and how many updates it has in all.

    A run on rows learns their number from its data: told by how many epochs its updates are.
    """
    if config.sft.data is None and config.prm.data is None and config.prm.questions is None:
        return {"method": config.train.algorithm, "on": config.task.name, "planned": config.train.updates, "rows": None}
    method, rows = ("prm", config.prm) if config.sft.data is None else ("sft", config.sft)
    epochs = [epoch for epoch in data["numbers"].get("epoch", []) if epoch]
    planned = round(data["updates"][-1] * rows.epochs / epochs[-1]) if epochs else 0
    on = config.task.name if rows.data is None else Path(rows.data).name
    return {"method": method, "on": on, "planned": planned, "rows": rows.model_dump(mode="json")}
