"""`palmette rows`: writes solutions of the task `words` as rows that `palmette sft` and `palmette train-prm` read."""

import errno
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from palmette.errors import ConfigError, RunError


def rows(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Where the rows go; must not exist yet.")],
    kind: Annotated[
        str, typer.Option(help="sft: right solutions. prm: right and wrong ones with labeled steps.")
    ] = "sft",
    count: Annotated[int, typer.Option("--rows", help="How many rows.", min=1, max=10**7)] = 1000,
    grades: Annotated[str, typer.Option(help="Grades of difficulty, in turn: 1,2,3.")] = "4",
    split: Annotated[str, typer.Option(help="train or test: they have no structure of a problem in common.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of questions and solutions.", min=0)] = 0,
    solutions: Annotated[
        int | None,
        typer.Option(help="Solutions of each question: right ones (sft, 1), wrong ones (prm, 2).", min=1, max=64),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="One wording for each kind of sentence (sft).")] = False,
    plain_questions: Annotated[
        bool, typer.Option("--plain-questions", help="The same in questions alone: task.generator={plain: true}.")
    ] = False,
    style: Annotated[
        str,
        typer.Option(
            help="told: calculations. quoting: each after its fact. goals: from the question backwards. "
            "quoted-goals: both."
        ),
    ] = "told",
    prompt: Annotated[str | None, typer.Option(help="Prompt with {question}, as task.prompt.")] = None,
) -> None:
    """Write rows to train on: solutions of the task words, right ones or also wrong ones with labels."""
    from palmette.settings import TaskSettings
    from palmette.tasks.task import read_format
    from palmette.tasks.words.rows import Plain, labeled_rows, solution_rows
    from palmette.tasks.words.solution import Style
    from palmette.tasks.words.structure import Split

    if kind not in ("sft", "prm"):
        raise ConfigError(f"--kind cannot be {kind!r}: choose sft or prm")
    if split not in get_args(Split):
        raise ConfigError(f"--split cannot be {split!r}: choose train or test")
    if style not in get_args(Style):
        raise ConfigError(f"--style cannot be {style!r}: choose {', '.join(get_args(Style))}")
    if prompt is not None and "{question}" not in prompt:
        raise ConfigError("--prompt must contain {question}, which is replaced by the question")
    if prompt is not None and any(0xD800 <= ord(character) < 0xE000 for character in prompt):
        raise ConfigError("--prompt holds bytes that are not UTF-8")
    form = read_format("words", TaskSettings(name="words", prompt=prompt))
    if plain and kind == "prm":
        raise ConfigError("--plain is for --kind sft: wrong solutions are told in all wordings")
    asked = _grades(grades), cast("Split", split), seed, form
    written = cast("Style", style)
    told: Plain = "all" if plain else "questions" if plain_questions else "nothing"
    if kind == "sft":
        made = solution_rows(*asked, solutions or 1, told, written)
    else:
        made = labeled_rows(*asked, solutions or 2, told, written)
    write_new(file, islice(made, count))
    print(f"{count} rows in {file}")


def _grades(text: str) -> list[int]:
    from palmette.tasks.words.generate import GRADES

    found = [int(part) for part in text.split(",") if part.isascii() and part.isdigit() and len(part) < 3]
    if len(found) != len(text.split(",")) or not set(found) <= set(GRADES):
        raise ConfigError(f"--grades cannot be {text!r}: give some of {', '.join(map(str, GRADES))}, with commas")
    return found


def write_new(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a new file, whole or not at all. Raises ConfigError if it is there, RunError where it cannot be written.

    Of two processes that write the same file at once, the one that is done first has it.
    """
    part = path.with_name(f".rows-{os.getpid()}.part")
    try:
        _check_new(path)
        with part.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        _check_new(path)
        part.replace(path)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} is there already: give another name, or remove it") from error
    except OSError as error:
        raise RunError(f"cannot write rows to {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _check_new(path: Path) -> None:
    if os.path.lexists(path):  # A link that leads nowhere is somebody's, too.
        raise FileExistsError(errno.EEXIST, "File exists", str(path))
