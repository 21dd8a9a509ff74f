"""Loads a task by name: a built-in or installed one, a JSONL file, or `package.module:name`."""

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from palmette import registry
from palmette.errors import ConfigError
from palmette.own_parts import name_of, telling
from palmette.settings import TaskSettings
from palmette.tasks.task import OWN_QUESTIONS, Task, own_format, read_format
from palmette.units import nearest

FILE_SOURCE = "jsonl"


def load_task(settings: TaskSettings) -> Task:
    """Return the task that `task.name` names, with `task.questions` questions from `task.skip` on.

    The name is a built-in or installed task (`ladder`, `words`, `rg:NAME`), the path of a JSONL file, or
    `package.module:name`. Raises ConfigError if there is no such task or it has no question in that range.
    """
    name = settings.name
    source = source_of(name)
    if source is not None:
        part = registry.find("task", source)
    elif name == OWN_QUESTIONS:
        raise ConfigError(
            "the questions of this run were given from Python and cannot be loaded again: resume it there, with "
            "Searcher.of_run(FOLDER).resume(FOLDER, questions)"
        )
    else:
        near = nearest(name, [listing.name for listing in registry.listings("task")])
        hint = f" Did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"task.name: no task {name!r}: use ladder, words, rg:GENERATOR or the path of a JSONL file.{hint}"
        )
    with telling("task", name_of(part), "making questions", ConfigError):
        task = _as_task(registry.build(part, settings=settings), settings)
    if not task.questions:
        raise ConfigError(f"task.name: {name} has no questions left after task.skip {settings.skip}")
    return replace(task, settings=settings)


def source_of(name: str) -> str | None:
    """Return the part that loads a task of this name: a built-in or installed one, or `package.module:name`.

    It is `jsonl` for a path, also where a file or folder has the name of a task: tasks go first. None for no task.
    """
    source, _, rest = name.partition(":")
    if rest and source in registry.built_ins("task"):
        return source
    if registry.is_reference(name) or name in [listing.name for listing in registry.listings("task")]:
        return name
    return FILE_SOURCE if _is_path(name) else None


def _as_task(found: object, settings: TaskSettings) -> Task:
    """Return what a task plugin gave as a Task: a Task as it is, questions as a new one."""
    if callable(found):
        found = found()
    if isinstance(found, Task):
        return found
    if not isinstance(found, Iterable):
        raise ConfigError(f"task.name: {settings.name} gives a {type(found).__name__}, not a Task or Question objects")
    questions = tuple(islice(found, settings.skip, settings.skip + settings.questions))
    return Task(settings.name, questions, read_format(own_format(settings), settings).step_end)


def _is_path(name: str) -> bool:
    return "/" in name or Path(name).suffix in (".jsonl", ".json", ".parquet") or os.path.exists(name)
