"""Tasks from JSONL and parquet files, with the fields of MATH500, of GSM8K, of TRL and verl, or chat messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.parquet import read_parquet
from palmette.tasks.task import (
    COLUMNS,
    ROLES,
    Format,
    Message,
    Question,
    Task,
    check_question,
    own_format,
    read_format,
)


def load(settings: TaskSettings) -> Task:
    """Return the questions of the file at the path `task.name`. Raises ConfigError for a broken line.

    The whole file is read even if few questions are asked for, so that a broken line is found before the run starts.
    """
    form = read_format(own_format(settings), settings)
    rows = tuple(read_questions(Path(settings.name), form))
    if settings.skip >= len(rows):
        raise ConfigError(f"{settings.name}: task.skip is {settings.skip}, the file has {len(rows)} rows")
    return Task(settings.name, rows[settings.skip : settings.skip + settings.questions], form.step_end)


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the row of every line that is not blank, or of every row of a parquet file.

    Raises ConfigError with the line that is broken, BackendError for a parquet file without pyarrow.
    """
    if path.suffix == ".parquet":
        yield from read_parquet(path)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not a valid file name: {error}") from error
    with file:
        empty = True
        for number, line in enumerate(_lines(file, path), start=1):
            if not line.strip():
                continue
            empty = False
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError:
                raise ConfigError(f"{path}, line {number}: not UTF-8 text") from None
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number}: not valid JSON: {error}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}, line {number}: a row is an object, this is a {type(row).__name__}")
            yield number, row
    if empty:
        raise ConfigError(f"{path}: the file has no rows")


def read_questions(path: Path, form: Format) -> Iterator[Question]:
    """Yield one question for each row of the file.

    A row has `problem`, `question` or `messages`, an `answer`, and maybe an `id` or `unique_id`, else the line number
    is the id. Raises ConfigError with the line of a row that lacks these or repeats an id.
    """
    seen: set[str] = set()
    for number, row in read_rows(path):
        place = f"{path}, line {number}"
        row_id = row.get("id", row.get("unique_id"))
        name = str(row_id) if isinstance(row_id, str | int) and not isinstance(row_id, bool) else str(number)
        if name in seen:
            raise ConfigError(f"{place}: the id {name!r} is used on an earlier line too")
        seen.add(name)
        yield read_question(name, row, form, place)


def read_question(name: str, row: dict[str, Any], form: Format, place: str, *, needs_answer: bool = True) -> Question:
    """Return the question in a row, its further columns in `key`.

    A row with `prompt`, TRL's or verl's, keeps all of them for reward functions. A ground truth that is neither text
    nor number, which some of verl's rows have, is for reward functions alone. Raises ConfigError, with `place` in its
    message, if the row has no question.
    """
    columns = {column: value for column, value in row.items() if "prompt" in row or column not in _READ}
    truth = row.get("reward_model")
    if isinstance(truth, dict) and isinstance(truth.get("ground_truth"), str | int | float):
        row = {"answer": truth["ground_truth"], **row}
    has_answer = (needs_answer and "prompt" not in row) or "answer" in row
    key: dict[str, object] = {COLUMNS: columns} if columns else {}
    messages, text = _messages(row, form, place)
    question = Question(name, messages, _reference(row, place) if has_answer else None, key, text)
    check_question(question, place)
    return question


_READ = ("problem", "question", "messages", "answer", "id", "unique_id")
"""Columns that a question is read from where a row has no `prompt`; rewards get all others."""


def _lines(file: Any, path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}") from error


def _messages(row: dict[str, Any], form: Format, place: str) -> tuple[tuple[Message, ...], str | None]:
    """Return the messages of a row, and the question alone where the row holds that."""
    if "messages" in row:
        return _chat(row["messages"], place), None
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        return _chat(prompt, place, "prompt"), None
    if isinstance(prompt, str) and prompt.strip():
        return ({"role": "user", "content": prompt},), None
    for field in ("problem", "question"):
        if field in row:
            text = row[field]
            if not isinstance(text, str) or not text.strip():
                raise ConfigError(f"{place}: {field!r} is not a text, or is empty")
            return form.messages(text), text
    found = ", ".join(sorted(map(str, row))[:8]) or "nothing"
    raise ConfigError(f"{place}: needs 'problem', 'question', 'prompt' or 'messages'; found {found}")


def _chat(messages: Any, place: str, field: str = "messages") -> tuple[Message, ...]:
    whole = isinstance(messages, list) and all(
        isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
        for message in messages
    )
    if not whole or not messages or messages[-1]["role"] != "user":
        raise ConfigError(
            f"{place}: {field!r} must be a list of role ({', '.join(ROLES)}) and content, the user's last"
        )
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def _reference(row: dict[str, Any], place: str) -> str:
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ConfigError(f"{place}: needs 'answer', a text or a number")
    return str(answer)


plugin = load
