"""Rows to train on: solutions for `palmette sft`, solutions with labeled steps for `palmette train-prm`."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Literal

from palmette.tasks.task import Format
from palmette.tasks.words.check import check_solution
from palmette.tasks.words.generate import problems
from palmette.tasks.words.mistakes import wrong_solutions
from palmette.tasks.words.problem import Problem
from palmette.tasks.words.solution import Style, solve
from palmette.tasks.words.structure import Split

Plain = Literal["nothing", "questions", "all"]
"""What is told in one wording for each kind of sentence: nothing, questions, or solutions too."""


def distinct_problems(grade: int, split: Split, seed: int, plain: bool = False) -> Iterator[Problem]:
    """Yield problems without end, each text once."""
    seen: set[bytes] = set()
    for problem in problems(grade, split, seed, plain):
        digest = hashlib.blake2b(problem.text.encode(), digest_size=8).digest()
        if digest not in seen:
            seen.add(digest)
            yield problem


def solution_rows(
    grades: Sequence[int],
    split: Split,
    seed: int,
    form: Format,
    solutions: int = 1,
    plain: Plain = "nothing",
    style: Style = "told",
) -> Iterator[dict[str, Any]]:
    """Yield rows of prompt and completion without end: so many right solutions to each question, grades in turn.

    No solution of a question comes twice, so that short ones in plain words may have fewer.
    """
    for problem, generator in _questions(grades, split, seed, plain != "nothing"):
        told = (solve(problem, generator, plain == "all", style) for _ in range(solutions))
        for lines in dict.fromkeys(told):
            yield {"prompt": list(form.messages(problem.text)), "completion": "\n".join(lines)}


def labeled_rows(
    grades: Sequence[int],
    split: Split,
    seed: int,
    form: Format,
    wrong: int = 2,
    plain: Plain = "nothing",
    style: Style = "told",
) -> Iterator[dict[str, Any]]:
    """Yield rows in TRL's format without end: to each question a right solution and up to so many wrong ones.

    A step's label is true if the checker says that it follows and is new. Solutions are told in all wordings.
    """
    for problem, generator in _questions(grades, split, seed, plain != "nothing"):
        written = [solve(problem, generator, style=style)]
        written += [solution.lines for solution in islice(wrong_solutions(problem, generator, style), wrong)]
        for lines in written:
            labels = [check.advances for check in check_solution(problem, "\n".join(lines))]
            yield {"prompt": list(form.messages(problem.text)), "completions": list(lines), "labels": labels}


def _questions(
    grades: Sequence[int], split: Split, seed: int, plain: bool = False
) -> Iterator[tuple[Problem, random.Random]]:
    """Yield problems, one of each grade in turn, and what their solutions are drawn with."""
    generator = random.Random(f"words solutions {split} {seed}")
    for source in cycle([distinct_problems(grade, split, seed, plain) for grade in grades]):
        yield next(source), generator
