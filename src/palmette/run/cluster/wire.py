"""What driver and workers send each other, as JSON: a config, questions, events, errors. Never a pickle of ours."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from palmette import errors, registry
from palmette.config import check_config
from palmette.errors import ConfigError, PalmetteError, RunError
from palmette.run.folder import recorded_values
from palmette.settings import Config
from palmette.tasks.task import Question, Task
from palmette.units import describe_error

_ERRORS = {
    cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, PalmetteError)
}


def config_text(config: Config, task: Task) -> str:
    """Return a config for workers; raise ConfigError where it or the task names an object of this process."""
    values = recorded_values(config)
    parts = {
        "policy": config.policy.backend, "reward": config.reward.score, "strategy": config.search.strategy,
        "embedder": config.embedder.model, "judge": task.judge if config.task.judge == "auto" else config.task.judge,
    }  # fmt: skip
    for role, part in parts.items():
        if not isinstance(part, str) or registry.is_object(part):
            name = registry.lasting(part) if isinstance(part, str) else type(part).__name__
            raise ConfigError(
                f"scale.workers: {role} {name} is an object of this process, which other machines do not have: "
                f"give a part that they can import, as package.module:name"
            )
    return json.dumps(values)


def config_of(text: str) -> Config:
    """Return the config that `config_text` wrote; imports what it names."""
    return check_config(json.loads(text), {}, "the config of the driver")


def questions_text(questions: Iterable[Question]) -> str:
    """Return questions for a worker."""
    return json.dumps([asdict(question) for question in questions])


def questions_of(text: str) -> tuple[Question, ...]:
    """Return the questions that `questions_text` wrote."""
    return tuple(Question(**{**row, "messages": tuple(row["messages"])}) for row in json.loads(text))


def task_text(task: Task, questions: Iterable[Question]) -> str:
    """Return a task for workers, with some of its questions."""
    values = {"name": task.name, "step_end": task.step_end, "judge": task.judge}
    return json.dumps({**values, "questions": questions_text(questions)})


def task_of(text: str) -> Task:
    """Return the task that `task_text` wrote."""
    values = json.loads(text)
    return Task(values["name"], questions_of(values["questions"]), values["step_end"], values["judge"])


def error_values(error: Exception) -> dict[str, str]:
    """Return an error as JSON values."""
    if isinstance(error, PalmetteError):
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": RunError.__name__, "message": describe_error(error)}


def read_answer(text: str, who: str) -> dict[str, Any]:
    """Return the values of an answer; raise the error that it tells, with `who` told it."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise RunError(f"{who} answered with something else than JSON values")
    if "error" in values:
        raise _ERRORS.get(str(values["error"]), RunError)(f"{who}: {values.get('message')}")
    return values
