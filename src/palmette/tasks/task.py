"""The task contract: questions, the prompt format, what ends a step, and the judge of answers."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from palmette.errors import ConfigError
from palmette.own_parts import shown
from palmette.settings import TaskSettings
from palmette.units import describe_error, one_line

Message = dict[str, str]

COLUMNS = "columns"
"""The entry of `Question.key` with the columns of a file's row that the question itself is not read from."""

OWN_QUESTIONS = "questions"
"""The name of a task that was made of questions given from Python: nothing can load it again."""


@dataclass(frozen=True)
class Question:
    """One question as chat messages. `reference` is the reference answer, None if there is none.

    `key` holds further values for the task's own judge. `text` is the question alone, without what the messages say
    about how to answer it; None where that is not known.
    """

    id: str
    messages: tuple[Message, ...]
    reference: str | None = None
    key: dict[str, object] = field(default_factory=dict)
    text: str | None = field(default=None, compare=False)

    @property
    def digest(self) -> str:
        """A hash of messages, reference and key: everything the question is asked and judged by.

        Further columns of a file are left out: only rewards of one's own read them.
        """
        key = {name: value for name, value in self.key.items() if name != COLUMNS}
        content = json.dumps([self.messages, self.reference, key], sort_keys=True)
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
        _check_task(self)


LONGEST_QUESTION = 1_000_000


def _check_task(task: Task) -> None:
    """Raise ConfigError, with the task and the question, for what cannot be searched, recorded or read again."""
    values: dict[str, Any] = vars(task)
    name, step_end, questions = values["name"], values["step_end"], values["questions"]
    place = f"task {one_line(str(name), 80)}"
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{place}: name is {shown(name)}: expected a text")
    if not isinstance(step_end, str) or not step_end:
        raise ConfigError(f"{place}: step_end is {shown(step_end)}: expected the text that ends a step")
    if not isinstance(questions, Sequence):
        raise ConfigError(f"{place}: questions is {shown(questions)}: expected a tuple of Question objects")
    seen: set[str] = set()
    for number, question in enumerate(questions, start=1):
        check_question(question, f"{place}, question {number}")
        if question.id in seen:
            told = f"two questions have the id {one_line(question.id, 80)!r}: give each an id of its own"
            raise ConfigError(f"{place}: {told}")
        seen.add(question.id)


ROLES = ("system", "user", "assistant")
"""Who speaks in a message."""


def check_question(question: Any, place: str) -> None:
    """Raise ConfigError, with `place`, unless this is a Question that can be asked, recorded and read again.

    Its texts must be texts that a tokenizer accepts (no half of a surrogate pair), not too long for any model.
    """
    if not isinstance(question, Question):
        raise ConfigError(f"{place} is {shown(question)}: expected a Question")
    name: Any = question.id
    if not isinstance(name, str):
        raise ConfigError(f"{place}: id is {shown(name)}: expected a text")
    if not isinstance(question.reference, str | None):
        raise ConfigError(f"{place}: reference is {shown(question.reference)}: expected a text, or None")
    if not isinstance(question.text, str | None):
        raise ConfigError(f"{place}: text is {shown(question.text)}: expected a text, or None")
    messages: Any = question.messages
    if not isinstance(messages, Sequence) or not messages or not all(map(_is_message, messages)):
        raise ConfigError(
            f"{place}: messages is {shown(messages)}: expected messages of role ({', '.join(ROLES)}) and content"
        )
    texts = [question.id, question.reference or "", *(message["content"] for message in messages)]
    if sum(map(len, texts)) > LONGEST_QUESTION:
        raise ConfigError(f"{place}: the question has over {LONGEST_QUESTION:,} characters")
    try:
        "".join([*texts, question.text or ""]).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{place}: the text holds half of a surrogate pair, which is no character") from None
    try:
        _ = question.digest
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: messages or key hold what JSON cannot write: {describe_error(error)}") from error


def _is_message(message: Any) -> bool:
    """Tell whether a message has a role and a content and no other key: chat templates write what they are given."""
    whole = isinstance(message, Mapping) and message.keys() == {"role", "content"}
    return whole and message["role"] in ROLES and isinstance(message["content"], str)


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
    """Return the format `kind` (`ladder`, `words`, `math`, `gym`), overridden by `task.prompt`, `system`, `step_end`.

    Raises ConfigError if the prompt does not contain {question}.
    """
    values = yaml.safe_load(files("palmette.tasks").joinpath("formats.yaml").read_text(encoding="utf-8"))[kind]
    overrides = {key: getattr(settings, key) for key in ("prompt", "system", "step_end")}
    form = Format(**{**values, **{key: value for key, value in overrides.items() if value is not None}})
    if "{question}" not in form.prompt:
        raise ConfigError("task.prompt must contain {question}, which is replaced by the question")
    return form
