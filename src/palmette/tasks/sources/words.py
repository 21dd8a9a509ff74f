"""The task `words`: word problems about quantities that depend on each other, in four grades of difficulty."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.task import Question, Task, read_format
from palmette.tasks.words.generate import DEFAULT_GRADE, GRADES
from palmette.tasks.words.rows import distinct_problems


def load(settings: TaskSettings) -> Task:
    """Return the task for `task.grade`, `task.split`, `task.seed` and `task.generator`, which may have `plain`.

    Raises ConfigError for an unknown grade or option.
    """
    grade = DEFAULT_GRADE if settings.grade is None else settings.grade
    if grade not in GRADES:
        raise ConfigError(f"task.grade cannot be {grade}: words has grades 1 to {max(GRADES)}")
    form = read_format("words", settings)
    plain = _plain(settings.generator)
    made = distinct_problems(grade, settings.split, settings.seed, plain)
    found = islice(made, settings.skip + settings.questions)
    questions = [
        Question(
            f"{settings.split}-{grade}{'-plain' if plain else ''}-{settings.seed}-{number}",
            form.messages(problem.text),
            str(problem.answer),
            text=problem.text,
        )
        for number, problem in enumerate(found)
        if number >= settings.skip
    ]
    return Task(settings.name, tuple(questions), form.step_end)


def _plain(options: Mapping[str, Any]) -> bool:
    """Return whether each kind of fact and question has one wording."""
    plain = options.get("plain", False)
    if set(options) - {"plain"} or not isinstance(plain, bool):
        raise ConfigError("task.generator of words has one option, plain, which is true or false")
    return plain


plugin = load
