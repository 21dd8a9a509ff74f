"""The task `words`: word problems about quantities that depend on each other, in four grades of difficulty."""

from itertools import islice

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.task import Question, Task, read_format
from palmette.tasks.words.generate import DEFAULT_GRADE, GRADES
from palmette.tasks.words.rows import distinct_problems


def load(settings: TaskSettings) -> Task:
    """Return the task for `task.grade`, `task.split` and `task.seed`. Raises ConfigError for an unknown grade."""
    grade = DEFAULT_GRADE if settings.grade is None else settings.grade
    if grade not in GRADES:
        raise ConfigError(f"task.grade cannot be {grade}: words has grades 1 to {max(GRADES)}")
    form = read_format("words", settings)
    found = islice(distinct_problems(grade, settings.split, settings.seed), settings.skip + settings.questions)
    questions = [
        Question(
            f"{settings.split}-{grade}-{settings.seed}-{number}",
            form.messages(problem.text),
            str(problem.answer),
            text=problem.text,
        )
        for number, problem in enumerate(found)
        if number >= settings.skip
    ]
    return Task(settings.name, tuple(questions), form.step_end)


plugin = load
