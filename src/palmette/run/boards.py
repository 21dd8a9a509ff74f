"""Statistics of a training run for tools that draw curves: TensorBoard, Weights & Biases."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.events import Evaluated, Event, RowsTested, UpdateDone
from palmette.settings import Board
from palmette.units import describe_error

PROJECT = "palmette"

_PACKAGES: dict[Board, tuple[str, str]] = {
    "tensorboard": ("tensorboard", "pip install 'palmette[board]'"),
    "wandb": ("wandb", "pip install wandb"),
}
"""The module that each needs, and how it is installed."""

Log = Callable[[int, Mapping[str, float]], None]
"""Takes the number of an update and values by name."""


def check_boards(names: Sequence[Board]) -> None:
    """Raise ConfigError for a tool that is not installed."""
    for name in names:
        module, how = _PACKAGES[name]
        if find_spec(module) is None:
            raise ConfigError(f"train.log_to names {name}, which is not installed: {how}, or leave it out")


@contextmanager
def boards(
    names: Sequence[Board], folder: Path, config: Mapping[str, Any], first_update: int
) -> Iterator[Callable[[Event], None]]:
    """Yield a function that hands events of the run in `folder` to these tools.

    `first_update` is the first that will be told: TensorBoard forgets what an interrupted run has told from it on,
    Weights & Biases keeps what it was told first. Raises ConfigError for a tool that cannot start.
    """
    with ExitStack() as stack:
        logs = []
        for name in names:
            try:
                logs.append(stack.enter_context(_STARTS[name](folder, config, first_update)))
            except Exception as error:
                raise ConfigError(f"train.log_to: {name} cannot start: {describe_error(error)}") from error

        def tell(event: Event) -> None:
            values = board_values(event)
            if values and isinstance(event, UpdateDone | Evaluated | RowsTested):
                for log in logs:
                    log(event.update, values)

        yield tell


def board_values(event: Event) -> dict[str, float]:
    """Return the numbers of an event by the names that boards show: a group, a slash, a name."""
    if isinstance(event, UpdateDone):
        return {
            **{f"train/{name}": value for name, value in event.numbers.items()},
            **{f"seconds/{name}": value for name, value in event.seconds.items()},
            **{f"peak_bytes/{name}": float(value) for name, value in event.peak_bytes.items()},
        }
    if isinstance(event, Evaluated):
        return {
            "test/single": event.single,
            "test/elected": event.elected,
            "test/error": event.error,
            "seconds/evaluation": event.seconds,
        }
    if isinstance(event, RowsTested):
        return {**{f"test/{name}": value for name, value in event.numbers.items()}, "seconds/test": event.seconds}
    return {}


@contextmanager
def _tensorboard(folder: Path, config: Mapping[str, Any], first_update: int) -> Iterator[Log]:
    from torch.utils import tensorboard

    make: Any = tensorboard.SummaryWriter
    writer = make(str(folder / "tensorboard"), purge_step=first_update)

    def log(update: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, update)

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _wandb(folder: Path, config: Mapping[str, Any], first_update: int) -> Iterator[Log]:
    wandb = import_module("wandb")
    run = wandb.init(
        project=PROJECT, name=folder.name, id=_run_id(folder), dir=str(folder), config=dict(config), resume="allow"
    )
    try:
        yield lambda update, values: run.log(dict(values), step=update)
    finally:
        run.finish()


_STARTS = {"tensorboard": _tensorboard, "wandb": _wandb}


def _run_id(folder: Path) -> str:
    """Return the same id for the same folder, so that a run that goes on is one run."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
