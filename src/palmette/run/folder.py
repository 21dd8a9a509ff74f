"""Run folders: made new, read back, and what of their questions is finished."""

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

from palmette import registry
from palmette.config import check_config, recorded_config
from palmette.errors import ConfigError, RunError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import (
    Evaluated,
    MemoryTimeline,
    OomRetry,
    QuestionFinished,
    QuestionStarted,
    Reclaimed,
    RowsTested,
    RunStarted,
    UpdateDone,
)
from palmette.server_settings import LOGS
from palmette.settings import Config
from palmette.tasks.load import FILE_SOURCE, source_of
from palmette.tasks.task import Task
from palmette.units import one_line
from palmette.zoo.catalog import ENTRIES

_PARTS = (
    ("policy", "model"), ("policy", "backend"), ("reward", "score"), ("task", "judge"), ("embedder", "model"),
    ("search", "strategy"),
)  # fmt: skip
"""Settings that can name an object."""

_SOURCE = {f"task.{key}" for key in ("name", "questions", "skip", "seed", "grade", "split")}
"""Settings that say which questions are asked."""

_PLACES = ("address", "served_model", "answer_seconds", "return_seconds")
_WHERE = {f"{role}.{key}" for role in ("policy", "reward") for key in _PLACES}
_WHERE |= {"reward.small_address", "reward.small_served_model"}
"""Settings that say where the servers of a policy are: a run can go on with others of the same model."""


def new_folder(config: Config, label: str | None = None) -> Path:
    """Make the run's folder; without `out` it is named by the moment and `label`.

    Raises ConfigError where it cannot be made or already holds something.
    """
    folder = Path(config.out or _new_name(label or f"{config.search.strategy}-{config.search.width}"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name != LOGS for path in folder.iterdir()):
            again = f", or continue it with --resume {folder}" if (folder / FILE_NAME).exists() else ""
            raise ConfigError(f"out: {folder} is not empty. Choose a new folder{again}")
    except OSError as error:
        raise ConfigError(f"out: cannot make the folder {folder}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"out: {str(folder)!r} is no name of a folder: {error}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"out: cannot write to {folder}: permission denied")
    return folder


def folder_path(folder: str | os.PathLike[str]) -> Path:
    """Return a folder's path; raise ConfigError for what is none."""
    if isinstance(folder, str | os.PathLike):
        return Path(folder)
    raise ConfigError(f"a {type(folder).__name__} is no folder of a run: give its path")


def run_config(folder: Path, *, imports: bool = True) -> Config:
    """Return the config a run was started with; without `imports` no code that it names is imported."""
    first = next(read_events(folder), None)
    if not isinstance(first, RunStarted):
        raise RunError(f"{folder / FILE_NAME}: the first event is not run_started; start the run again in a new folder")
    return recorded_config(first.config, str(folder / FILE_NAME), imports=imports)


def check_command(folder: Path, command: str) -> None:
    """Raise RunError for a folder whose run was started by another command than the one that would go on with it."""
    started = started_by(folder)
    if started not in (command, None):
        raise RunError(f"{folder} is a run of palmette {started}: go on with palmette {started} --resume {folder}")


def started_by(folder: Path) -> str | None:
    """Return the command that started a run, None if nothing tells: a search, or a training run, without results."""
    events = read_events(folder)
    first = next(events, None)
    for event in events:
        if isinstance(event, QuestionStarted):
            return "search"
        if isinstance(event, UpdateDone | Evaluated | RowsTested):
            break
    else:
        if not isinstance(first, RunStarted) or not first.run:
            return None
    config = run_config(folder, imports=False)
    if config.sft.data is not None:
        return "sft"
    return "train" if config.prm.data is None and config.prm.questions is None else "train-prm"


def has_begun(folder: Path) -> bool:
    """Tell whether a folder has more of a run than its config: one that has not may start anew with another."""
    if {path.name for path in folder.iterdir()} - {FILE_NAME, "report.html"}:
        return True
    before = RunStarted | Evaluated | RowsTested | MemoryTimeline | Reclaimed | OomRetry
    try:
        return not all(isinstance(event, before) for event in read_events(folder))
    except RunError:
        return True


def recorded_values(config: Config) -> dict[str, Any]:
    """Return the config as a run records it: objects by names that hold in any process."""
    values = config.model_dump(mode="json")
    for table, key in _PARTS:
        values[table][key] = registry.lasting(values[table][key])
    return values


def resumed_config(folder: Path, recorded: Config, config: Config) -> Config:
    """Return the config to resume a run with; raise RunError where it was recorded with other parts or settings.

    Questions are compared by what they ask (`finished_questions`); nothing in a tree depends on `memory` and `train`.
    """
    before, now = _decisive(recorded), _decisive(config)
    if before != now:
        config = anchored(config)
        now = _decisive(config)
    for key, value in before.items():
        if key in now and now[key] != value:
            was, told = (one_line(repr(shown), 80) for shown in (value, now[key]))
            raise RunError(
                f"{folder} was recorded with {key} {was}, and would be resumed with {told}: "
                f"use Searcher.of_run, or give what it was recorded with"
            )
    return config


def _decisive(config: Config) -> dict[str, Any]:
    values = recorded_values(config)
    tables = ("policy", "reward", "task", "embedder", "search")
    told = {f"{table}.{key}": value for table in tables for key, value in values[table].items()}
    return {"seed": config.seed, **{key: told[key] for key in told if key not in _SOURCE | _WHERE}}


def anchored(config: Config, strategies: Sequence[str] = ()) -> Config:
    """Return the config with its relative paths made absolute, so that it holds in any working directory."""
    values = config.model_dump(mode="json")
    for table, key in (("task", "name"), ("embedder", "model"), *product(("policy", "reward"), ("model", "adapter"))):
        name = values[table][key]
        if name and _may_be_path(table, key, name) and os.path.exists(os.path.expanduser(name)):
            values[table][key] = _absolute(name)
    for key in ("vllm_python", "sglang_python"):
        if os.sep in (values["servers"][key] or ""):
            values["servers"][key] = _absolute(values["servers"][key])
    for table in ("sft", "prm"):
        if values[table]["data"]:
            values[table]["data"] = _absolute(values[table]["data"])
    train = values["train"]
    if train["eval_task"] and source_of(train["eval_task"]) == FILE_SOURCE:
        train["eval_task"] = _absolute(train["eval_task"])
    if train["critic"] not in ("head", *ENTRIES) and os.path.exists(os.path.expanduser(train["critic"])):
        train["critic"] = _absolute(train["critic"])
    train["rewards"] = _anchored_rewards(train["rewards"])
    return check_config(values, {}, "config", strategies=strategies)


def _anchored_rewards(rewards: dict[str, float]) -> dict[str, float]:
    """Return rewards with `file.py:name` made absolute; raise ConfigError where two names stand for one function."""
    anchored: dict[str, float] = {}
    for name, weight in rewards.items():
        path, _, function = name.rpartition(":")
        whole = f"{_absolute(path)}:{function}" if path.endswith(".py") else name
        if whole in anchored:
            raise ConfigError(f"train.rewards names {one_line(whole, 200)} twice: give it one weight")
        anchored[whole] = weight
    return anchored


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


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
