"""Turns questions passed from Python into a task: texts, chat messages, rows, or Question objects."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.sources.jsonl import read_question
from palmette.tasks.task import (
    OWN_QUESTIONS,
    Format,
    Message,
    Question,
    Task,
    check_question,
    own_format,
    read_format,
)

QuestionLike = str | Question | Mapping[str, Any] | Sequence[Message]
"""What is accepted as one question: its text, a Question, a row as in a JSONL file, or chat messages."""


def as_task(questions: QuestionLike | Task | Sequence[QuestionLike], settings: TaskSettings) -> tuple[Task, bool]:
    """Return the questions as a task, and whether `questions` was a single question.

    `task.format` selects the prompt format. A Task is returned unchanged. Questions without an id get a
    hash of their content as id; repeated ids get a number appended. Raises ConfigError for anything else and for no
    questions at all.
    """
    if isinstance(questions, Task):
        return questions, False
    form = read_format(own_format(settings), settings)
    is_one = isinstance(questions, str | Question | Mapping) or _are_messages(questions)
    if not is_one and not isinstance(questions, Iterable):
        raise ConfigError(f"a {type(questions).__name__} is no question: give a text, messages, a Question, or a list")
    asked: Iterable[Any] = [questions] if is_one else cast("Sequence[QuestionLike]", questions)
    made = [_question(item, form, f"question {place}") for place, item in enumerate(asked, start=1)]
    if not made:
        raise ConfigError("there is no question to search: give a text, messages, or a list of them")
    return Task(OWN_QUESTIONS, tuple(_numbered(made)), form.step_end), is_one


def _numbered(questions: Sequence[Question]) -> Iterator[Question]:
    """Yield the questions with a number behind each id that stood before: the next one that makes an id of its own."""
    taken = {question.id for question in questions}
    seen: Counter[str] = Counter()
    for question in questions:
        seen[question.id] += 1
        name = question.id
        while seen[question.id] > 1 and (name := f"{question.id}-{seen[question.id]}") in taken:
            seen[question.id] += 1
        taken.add(name)
        yield replace(question, id=name)


def _question(item: Any, form: Format, place: str) -> Question:
    if isinstance(item, Question):
        check_question(item, place)
        return item
    if isinstance(item, str):
        item = {"question": item}
    elif _are_messages(item):
        item = {"messages": list(item)}
    if not isinstance(item, Mapping):
        raise ConfigError(f"{place}: a {type(item).__name__} is no question: give a text, messages or a Question")
    row = dict(item)
    name = row.get("id", row.get("unique_id"))
    if not isinstance(name, str | int):
        asked = json.dumps({key: row[key] for key in row if key != "answer"}, sort_keys=True, default=str)
        name = hashlib.blake2b(asked.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return read_question(str(name), row, form, place, needs_answer=False)


def _are_messages(questions: Any) -> bool:
    is_list = isinstance(questions, Sequence) and not isinstance(questions, str) and len(questions) > 0
    return is_list and all(isinstance(message, Mapping) and "role" in message for message in questions)
