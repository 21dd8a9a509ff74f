"""Training from Python: a policy on a task, a policy on answers, a reward model on labels of steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.event_log import read_events
from palmette.events import Event, UpdateDone
from palmette.run.folder import anchored, new_folder
from palmette.run.training_folder import Command, config_of, finished_model
from palmette.settings import Config

Listener = Callable[[Event], None]
"""Is told of every event: updates, evaluations, checkpoints."""


@dataclass(frozen=True)
class Trained:
    """What a training run came to.

    `model` is the folder of its last checkpoint: the whole model, or with `method="lora"` the adapter, which a search
    takes as `policy.adapter`. `updates` are those of the whole run, also where it was stopped in between.
    """

    folder: Path
    model: Path
    updates: tuple[UpdateDone, ...]


def train_policy(
    policy: str | None = None,
    task: str | None = None,
    *,
    out: str | Path | None = None,
    seed: int | None = None,
    config: Config | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Listener | None = None,
    **train: Any,
) -> Trained:
    """Train a policy on a task by reinforcement learning, as `palmette train` does.

    Keys of `train.` are given by their names (`updates=20, algorithm="grpo"`), those of other tables in `settings`
    (`{"search.width": 8}`). A run that was stopped goes on when called with the same `out` and settings; one that is
    finished is read, not repeated. Raises ConfigError for what cannot be trained, BudgetError before a weight is read
    where the plan does not fit, RunError for a folder whose run has other settings.
    """
    given = {"policy.model": policy, "task.name": task, **_of_train(train)}
    return _trained("train", config, given, out, seed, settings, progress)


def sft(
    policy: str,
    data: str | Path,
    *,
    epochs: int | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    config: Config | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Listener | None = None,
    **train: Any,
) -> Trained:
    """Train a policy on the answers of a file, as `palmette sft` does; all else as `train_policy`."""
    given = {"policy.model": policy, "sft.data": str(data), "sft.epochs": epochs, **_of_train(train)}
    return _trained("sft", config, given, out, seed, settings, progress)


def train_prm(
    policy: str,
    data: str | Path,
    *,
    epochs: int | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    config: Config | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Listener | None = None,
    **train: Any,
) -> Trained:
    """Train a process reward model, which begins as `policy`, on labels of steps, as `palmette train-prm` does."""
    given = {"policy.model": policy, "prm.data": str(data), "prm.epochs": epochs, **_of_train(train)}
    return _trained("train-prm", config, given, out, seed, settings, progress)


def _of_train(given: Mapping[str, Any]) -> dict[str, Any]:
    return {f"train.{key}": value for key, value in given.items()}


def _trained(
    command: Command,
    base: Config | str | Path | None,
    given: Mapping[str, Any],
    out: str | Path | None,
    seed: int | None,
    settings: Mapping[str, Any] | None,
    progress: Listener | None,
) -> Trained:
    """Train to the end, in a new folder or on in one that was begun."""
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError('settings: give a table of keys and values, such as {"search.width": 8}')
    named = {**given, "out": None if out is None else str(out), "seed": seed}
    overrides = {key: value for key, value in named.items() if value is not None} | dict(settings or {})
    config, begun = config_of(command, base, overrides, given_by="arguments")
    folder = begun or new_folder(config, f"{command}-{Path(config.policy.model).name}")
    model = finished_model(command, config, begun) if begun else None
    if model is None:
        model = _run(command, anchored(config), folder, progress)
    last = {event.update: event for event in read_events(folder) if isinstance(event, UpdateDone)}
    return Trained(folder, model, tuple(last[update] for update in sorted(last)))


def _run(command: Command, config: Config, folder: Path, progress: Listener | None) -> Path:
    from palmette.run.train import TrainingRun
    from palmette.run.train_rows import PrmRun, SftRun

    kinds: dict[Command, type[TrainingRun | SftRun | PrmRun]] = {
        "train": TrainingRun, "sft": SftRun, "train-prm": PrmRun,
    }  # fmt: skip
    with kinds[command](config, folder) as training:
        for event in training.updates():
            if progress is not None:
                progress(event)
        last = training.last_checkpoint()
    assert last is not None  # The last update of a run writes one.
    return folder / last
