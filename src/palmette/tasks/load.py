"""From a task's name to its questions."""

import os
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice
from pathlib import Path

import yaml

from palmette.config import TaskSettings, nearest
from palmette.errors import ConfigError
from palmette.tasks import gym, jsonl, ladder
from palmette.tasks.task import Format, Question, Task


def load_task(settings: TaskSettings) -> Task:
    """Build the task: `ladder`, `rg:NAME` or the path of a JSONL file. Raises ConfigError where it has no question."""
    name = settings.name
    if name == "ladder":
        questions = islice(_ladder(settings), settings.skip, settings.skip + settings.questions)
        return Task(name, tuple(questions), _format("ladder", settings).step_end)
    if name.startswith("rg:"):
        form = _format("gym", settings)
        found = tuple(gym.generate(name[3:], form, settings.seed, settings.skip + settings.questions))
        return Task(name, found[settings.skip :], form.step_end, judge="gym")
    if not _is_path(name):
        guess = nearest(name, ["ladder"])
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise ConfigError(f"task.name: no task {name!r}: use ladder, rg:GENERATOR or the path of a JSONL file.{hint}")
    form = _format("math", settings)
    # Read to the end even when few questions are asked: a broken line should be found before the run starts.
    rows = tuple(jsonl.read_questions(Path(name), form))
    if settings.skip >= len(rows):
        raise ConfigError(f"{name}: task.skip is {settings.skip}, the file has {len(rows)} rows")
    return Task(name, rows[settings.skip : settings.skip + settings.questions], form.step_end)


def _is_path(name: str) -> bool:
    return "/" in name or Path(name).suffix in (".jsonl", ".json") or os.path.exists(name)


def _ladder(settings: TaskSettings) -> Iterator[Question]:
    """Yield distinct problems without end, as long as the grade has any."""
    if settings.grade not in ladder.GRADES:
        raise ConfigError(f"task.grade cannot be {settings.grade}: ladder has grades 1 to {max(ladder.GRADES)}")
    form = _format("ladder", settings)
    seen: set[str] = set()
    repeats = 0
    for problem in ladder.problems(settings.grade, settings.split, settings.seed):
        repeats = repeats + 1 if problem.expression in seen else 0
        if repeats > 10_000:
            raise ConfigError(f"task.questions: grade {settings.grade} of ladder has only about {len(seen)} problems")
        if not repeats:
            name = f"{settings.split}-{settings.grade}-{settings.seed}-{len(seen)}"
            seen.add(problem.expression)
            yield Question(name, form.messages(problem.expression), str(problem.answer))


def _format(kind: str, settings: TaskSettings) -> Format:
    values = yaml.safe_load(files("palmette.tasks").joinpath("formats.yaml").read_text(encoding="utf-8"))[kind]
    asked = {key: getattr(settings, key) for key in ("prompt", "system", "step_end")}
    form = Format(**{**values, **{key: value for key, value in asked.items() if value is not None}})
    if "{question}" not in form.prompt:
        raise ConfigError("task.prompt must hold {question}, where the question goes")
    return form
