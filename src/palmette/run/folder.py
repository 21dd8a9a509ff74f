"""Run folders: made new, read back, and what of their questions is finished."""

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import product
from pathlib import Path

from palmette import registry
from palmette.config import check_config, recorded_config
from palmette.errors import ConfigError, RunError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import QuestionFinished, QuestionStarted, RunStarted
from palmette.settings import Config
from palmette.tasks.load import FILE_SOURCE, source_of
from palmette.tasks.task import Task
from palmette.zoo.catalog import ENTRIES


def new_folder(config: Config, label: str | None = None) -> Path:
    """Make the run's folder; without `out` it is named by the moment and `label`.

    Raises ConfigError where it cannot be made or already holds something.
    """
    folder = Path(config.out or _new_name(label or f"{config.search.strategy}-{config.search.width}"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"out: {folder} is not empty. Choose a new folder, or continue it with --resume {folder}")
    except OSError as error:
        raise ConfigError(f"out: cannot make the folder {folder}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"out: {str(folder)!r} is no name of a folder: {error}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"out: cannot write to {folder}: permission denied")
    return folder


def run_config(folder: Path, *, imports: bool = True) -> Config:
    """Return the config a run was started with; without `imports` no code that it names is imported."""
    first = next(read_events(folder), None)
    if not isinstance(first, RunStarted):
        raise RunError(f"{folder / FILE_NAME}: the first event is not run_started; start the run again in a new folder")
    return recorded_config(first.config, str(folder / FILE_NAME), imports=imports)


def anchored(config: Config, strategies: Sequence[str] = ()) -> Config:
    """Return the config with its relative paths made absolute, so that it holds in any working directory."""
    values = config.model_dump(mode="json")
    for table, key in (("task", "name"), ("embedder", "model"), *product(("policy", "reward"), ("model", "adapter"))):
        name = values[table][key]
        if name and _may_be_path(table, key, name) and os.path.exists(os.path.expanduser(name)):
            values[table][key] = os.path.abspath(os.path.expanduser(name))
    return check_config(values, {}, "config", strategies=strategies)


def _may_be_path(table: str, key: str, name: str) -> bool:
    """Tell whether a setting can be a path: tasks, parts and models of that name go before a file or folder."""
    if table == "task":
        return source_of(name) == FILE_SOURCE
    kind = {"policy": "backend", "reward": "scorer", "embedder": "embedder"}[table]
    return key == "adapter" or (name not in ENTRIES and not registry.is_own(kind, name))


def finished_questions(folder: Path, task: Task) -> set[str]:
    """Return the ids of finished questions; raise RunError where the task is not the one the run was started on."""
    known = {question.id: question for question in task.questions}
    done = set()
    for event in read_events(folder):
        if isinstance(event, QuestionStarted):
            question = known.get(event.question)
            if question is None or question.digest != event.digest:
                raise RunError(f"{folder}: question {event.question} is no longer what it was; the task has changed")
        elif isinstance(event, QuestionFinished):
            done.add(event.question)
    return done


def _new_name(label: str) -> str:
    moment = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    safe = "".join(character if character.isalnum() or character in "._-" else "_" for character in label)
    return f"runs/{moment}-{safe}"
