"""The task contract: questions, how they are put, how their answers are judged."""

import hashlib
import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from palmette.errors import ConfigError
from palmette.settings import TaskSettings

Message = dict[str, str]


@dataclass(frozen=True)
class Question:
    """One problem as chat messages, with the answer it should have, None where nobody knows it.

    `key` is what a judge of the task's own needs.
    """

    id: str
    messages: tuple[Message, ...]
    reference: str | None = None
    key: dict[str, object] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a fingerprint of everything a model is asked and judged by."""
        whole = json.dumps([self.messages, self.reference, self.key], sort_keys=True)
        return hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Task:
    """Questions in order, the string that ends a step, and who judges answers.

    `judge` is a name (`math`, `gym`, an entry point, `package.module:name`), a judge, or a reward function.
    """

    name: str
    questions: tuple[Question, ...]
    step_end: str
    judge: Any = "math"
    settings: TaskSettings | None = field(default=None, compare=False)
    """What `load_task` made it from; None for questions of a user's own."""


@dataclass(frozen=True)
class Format:
    """How a question is put: `prompt` with {question} in it, a system message or none, what ends a step."""

    prompt: str
    step_end: str
    system: str | None = None

    def messages(self, question: str) -> tuple[Message, ...]:
        """Return the chat messages of a question."""
        asked = {"role": "user", "content": self.prompt.replace("{question}", question)}
        return ({"role": "system", "content": self.system}, asked) if self.system else (asked,)


def read_format(kind: str, settings: TaskSettings) -> Format:
    """Return how questions of a kind (`ladder`, `math`, `gym`) are put, with what the settings say instead."""
    values = yaml.safe_load(files("palmette.tasks").joinpath("formats.yaml").read_text(encoding="utf-8"))[kind]
    asked = {key: getattr(settings, key) for key in ("prompt", "system", "step_end")}
    form = Format(**{**values, **{key: value for key, value in asked.items() if value is not None}})
    if "{question}" not in form.prompt:
        raise ConfigError("task.prompt must hold {question}, where the question goes")
    return form
