"""The task contract: questions, the prompt format, what ends a step, and the judge of answers."""

import hashlib
import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.units import one_line

Message = dict[str, str]

OWN_QUESTIONS = "questions"
"""The name of a task that was made of questions given from Python: nothing can load it again."""


@dataclass(frozen=True)
class Question:
    """One question as chat messages. `reference` is the reference answer, None if there is none.

    `key` holds further values for the task's own judge.
    """

    id: str
    messages: tuple[Message, ...]
    reference: str | None = None
    key: dict[str, object] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A hash of messages, reference and key: everything the question is asked and judged by."""
        content = json.dumps([self.messages, self.reference, self.key], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Task:
    """Questions in order, the text that ends a step, and the judge of their answers.

    `judge` is a name (`math`, `gym`, an entry point, `package.module:name`), a judge object, or a reward function.
    Raises ConfigError for two questions with one id.
    """

    name: str
    questions: tuple[Question, ...]
    step_end: str
    judge: Any = "math"
    settings: TaskSettings | None = field(default=None, compare=False)
    """The settings that `load_task` loaded it with; None for questions passed from Python."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for question in self.questions:
            if question.id in seen:
                told = f"two questions have the id {one_line(question.id, 80)!r}: give each an id of its own"
                raise ConfigError(f"task {one_line(self.name, 80)}: {told}")
            seen.add(question.id)


@dataclass(frozen=True)
class Format:
    """How a question becomes messages: `prompt`, which contains {question}, and an optional system message.

    `step_end` is the text that ends a step.
    """

    prompt: str
    step_end: str
    system: str | None = None

    def messages(self, question: str) -> tuple[Message, ...]:
        """Return the chat messages of a question."""
        asked = {"role": "user", "content": self.prompt.replace("{question}", question)}
        return ({"role": "system", "content": self.system}, asked) if self.system else (asked,)


def own_format(settings: TaskSettings) -> str:
    """Return the format of questions that bring none of their own: files, texts, a user's tasks."""
    return "math" if settings.format == "auto" else settings.format


def read_format(kind: str, settings: TaskSettings) -> Format:
    """Return the format `kind` (`ladder`, `math` or `gym`), overridden by `task.prompt`, `system` and `step_end`.

    Raises ConfigError if the prompt does not contain {question}.
    """
    values = yaml.safe_load(files("palmette.tasks").joinpath("formats.yaml").read_text(encoding="utf-8"))[kind]
    overrides = {key: getattr(settings, key) for key in ("prompt", "system", "step_end")}
    form = Format(**{**values, **{key: value for key, value in overrides.items() if value is not None}})
    if "{question}" not in form.prompt:
        raise ConfigError("task.prompt must contain {question}, which is replaced by the question")
    return form
