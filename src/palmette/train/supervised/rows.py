"""Rows of a file to train on: prompt and completion, messages, or steps with labels; read and checked."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.tasks.sources.jsonl import read_rows
from palmette.tasks.task import ROLES, Message
from palmette.units import one_line


@dataclass(frozen=True)
class Conversation:
    """Messages of which some are learned: `learned` are the places of assistant messages, each after another one.

    `place` is the file and the line, for errors.
    """

    place: str
    messages: tuple[Message, ...]
    learned: tuple[int, ...]

    @property
    def key(self) -> bytes:
        """A hash of what comes before the first answer. Rows with the same one are on the same side of a split."""
        return _hash(self.messages[: self.learned[0]])


@dataclass(frozen=True)
class LabeledSteps:
    """A solution in steps, with the chance that each step is right, from 0 to 1, as its label.

    The last step ends the solution if it is `finished`.
    """

    place: str
    prompt: tuple[Message, ...]
    steps: tuple[str, ...]
    labels: tuple[float, ...]
    finished: bool = True

    @property
    def key(self) -> bytes:
        """A hash of the prompt. Rows with the same one are on the same side of a split."""
        return _hash(self.prompt)


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the rows of a file: {prompt, completion}, each a text or messages, or {messages}.

    A prompt that is a text is a user's message. All assistant messages of `messages`, or of a completion, are learned.
    Raises ConfigError, with the line, for a row that is none of these or has nothing to learn.
    """
    for number, row in read_rows(path):
        place = f"{path}, line {number}"
        if "messages" in row:
            messages, first = _messages(row["messages"], "messages", place), 0
        elif "prompt" in row and "completion" in row:
            prompt = _messages(row["prompt"], "prompt", place, role="user")
            messages = (*prompt, *_messages(row["completion"], "completion", place, role="assistant"))
            first = len(prompt)
        else:
            found = ", ".join(sorted(map(str, row))[:8]) or "nothing"
            raise ConfigError(f"{place}: needs 'prompt' and 'completion', or 'messages'; found {found}")
        learned = [at for at in range(first, len(messages)) if messages[at]["role"] == "assistant"]
        if not learned:
            raise ConfigError(f"{place}: there is no message of the role assistant to learn")
        if learned[0] == 0:
            raise ConfigError(f"{place}: the first message is an answer: there has to be a prompt before it")
        for at in learned:
            if not messages[at]["content"].strip():
                raise ConfigError(f"{place}: an answer is empty: there is nothing to learn from it")
        yield Conversation(place, messages, tuple(learned))


def read_labeled_steps(path: Path) -> Iterator[LabeledSteps]:
    """Yield the rows of a file in TRL's format: {prompt, completions, labels}, a label for each completion.

    A label is true, false, or a number from 0 to 1. With `finished` false the last step does not end the solution.
    Raises ConfigError, with the line, for a row that is not like that.
    """
    for number, row in read_rows(path):
        place = f"{path}, line {number}"
        lacking = [key for key in ("prompt", "completions", "labels") if key not in row]
        if lacking:
            raise ConfigError(f"{place}: lacks {', '.join(map(repr, lacking))}")
        steps, labels = row["completions"], row["labels"]
        if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
            raise ConfigError(f"{place}: 'completions' is not a list of texts, one for each step")
        if not all(step.strip() for step in steps):
            raise ConfigError(f"{place}: step {[bool(step.strip()) for step in steps].index(False) + 1} is empty")
        if not isinstance(labels, list) or len(labels) != len(steps):
            told = f"{len(labels)}" if isinstance(labels, list) else "no list"
            raise ConfigError(f"{place}: {len(steps)} steps in 'completions', and 'labels' has {told}: give one each")
        for label in labels:
            if not isinstance(label, int | float) or not 0 <= label <= 1:
                told = one_line(repr(label), 80)
                raise ConfigError(f"{place}: the label {told} is not true, false or a number from 0 to 1")
        finished = row.get("finished", True)
        if not isinstance(finished, bool):
            raise ConfigError(f"{place}: 'finished' is not true or false")
        _check_text("".join(steps), place)
        prompt = _messages(row["prompt"], "prompt", place, role="user")
        yield LabeledSteps(place, prompt, tuple(steps), tuple(map(float, labels)), finished)


def _messages(value: Any, field: str, place: str, role: str | None = None) -> tuple[Message, ...]:
    """Return messages; a text is one of this role, if there is one."""
    if role is not None and isinstance(value, str):
        if not value.strip():
            raise ConfigError(f"{place}: {field!r} is empty")
        value = [{"role": role, "content": value}]
    is_whole = isinstance(value, list) and all(
        isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
        for message in value
    )
    if not is_whole or not value:
        text = "" if role is None else "a text, or "
        raise ConfigError(f"{place}: {field!r} must be {text}a list of role ({', '.join(ROLES)}) and content")
    messages = tuple({"role": message["role"], "content": message["content"]} for message in value)
    _check_text("".join(message["content"] for message in messages), place)
    return messages


def _check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{place}: the text holds half of a surrogate pair, which is no character") from None


def _hash(messages: tuple[Message, ...]) -> bytes:
    return hashlib.sha256(json.dumps(messages).encode()).digest()
