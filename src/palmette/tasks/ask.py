"""Questions of a user's own as a task: texts, chat messages, rows, or finished questions."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.sources.jsonl import check_text, read_question
from palmette.tasks.task import Format, Message, Question, Task, read_format

One = str | Question | Mapping[str, Any] | Sequence[Message]
"""One question: its text, a Question, a row as in a JSONL file, or chat messages."""


def as_task(questions: One | Task | Sequence[One], format_name: str, settings: TaskSettings) -> tuple[Task, bool]:
    """Return the questions as a task, put as `format_name` says, and whether they are one question alone.

    Raises ConfigError for anything else.
    """
    if isinstance(questions, Task):
        return questions, False
    form = read_format(format_name, settings)
    is_one = isinstance(questions, str | Question | Mapping) or _are_messages(questions)
    asked: Iterable[Any] = [questions] if is_one else cast("Sequence[One]", questions)
    made: list[Question] = []
    seen: dict[str, int] = {}
    for place, one in enumerate(asked, start=1):
        question = _question(one, form, f"question {place}")
        seen[question.id] = seen.get(question.id, 0) + 1
        if seen[question.id] > 1:
            question = replace(question, id=f"{question.id}-{seen[question.id]}")
        made.append(question)
    if not made:
        raise ConfigError("there is no question to search: give a text, messages, or a list of them")
    return Task("questions", tuple(made), form.step_end), is_one


def _question(one: Any, form: Format, place: str) -> Question:
    if isinstance(one, Question):
        check_text(one, place)
        return one
    if isinstance(one, str):
        one = {"question": one}
    elif _are_messages(one):
        one = {"messages": list(one)}
    if not isinstance(one, Mapping):
        raise ConfigError(f"{place}: a {type(one).__name__} is no question: give a text, messages or a Question")
    row = dict(one)
    name = row.get("id", row.get("unique_id"))
    if not isinstance(name, str | int):
        asked = json.dumps({key: row[key] for key in row if key != "answer"}, sort_keys=True, default=str)
        name = hashlib.blake2b(asked.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return read_question(str(name), row, form, place, needs_answer=False)


def _are_messages(questions: Any) -> bool:
    is_list = isinstance(questions, Sequence) and not isinstance(questions, str) and len(questions) > 0
    return is_list and all(isinstance(message, Mapping) and "role" in message for message in questions)
