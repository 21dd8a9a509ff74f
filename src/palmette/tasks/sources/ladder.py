"""The task `ladder`: distinct integer expressions in four grades of difficulty."""

from collections.abc import Iterator
from itertools import islice

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks import ladder
from palmette.tasks.task import Format, Question, Task, read_format

_MOST_REPEATS = 10_000
"""After so many repeated problems in a row a grade is taken to have no more."""


def load(settings: TaskSettings) -> Task:
    """Return the task for `task.grade`, `task.split` and `task.seed`.

    Raises ConfigError for an unknown grade and if the grade has too few problems.
    """
    grade = ladder.DEFAULT_GRADE if settings.grade is None else settings.grade
    if grade not in ladder.GRADES:
        raise ConfigError(f"task.grade cannot be {grade}: ladder has grades 1 to {max(ladder.GRADES)}")
    form = read_format("ladder", settings)
    questions = islice(_questions(grade, settings, form), settings.skip, settings.skip + settings.questions)
    return Task(settings.name, tuple(questions), form.step_end)


def _questions(grade: int, settings: TaskSettings, form: Format) -> Iterator[Question]:
    """Yield distinct questions. Raises ConfigError once the grade has no more."""
    seen: set[str] = set()
    repeats = 0
    for problem in ladder.problems(grade, settings.split, settings.seed):
        repeats = repeats + 1 if problem.expression in seen else 0
        if repeats > _MOST_REPEATS:
            raise ConfigError(f"task.questions: grade {grade} of ladder has only about {len(seen)} problems")
        if not repeats:
            name = f"{settings.split}-{grade}-{settings.seed}-{len(seen)}"
            seen.add(problem.expression)
            yield Question(name, form.messages(problem.expression), str(problem.answer), text=problem.expression)


plugin = load
