"""What the seedlings learn from, as rows of files: solved `ladder` problems, and the policy's own steps with labels."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from palmette.tasks import ladder
from recipes.commands import whole_lines

_MIX = (1, 2, 7)
"""How often problems of the grades 1, 2 and 3 are drawn."""


def solutions(seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `palmette sft` without end: a problem of the training split and its canonical solution."""
    generator = random.Random(seed)
    streams = [ladder.problems(grade, "train", seed) for grade in (1, 2, 3)]
    while True:
        problem = next(generator.choices(streams, _MIX)[0])
        yield {"prompt": problem.expression, "completion": "\n".join(problem.lines)}


def labeled(expression: str, lines: Sequence[str], *, finished: bool) -> dict[str, Any] | None:
    """Return the row of `palmette train-prm` for a solution that was written, None if it has no whole line.

    A line is right if it follows from the lines before; the last of a finished solution only if nothing is left to do.
    The row ends before an empty line, and before the last line of a solution that was cut.
    """
    state: tuple[ladder.Token, ...] | None = ladder.parse(expression)
    labels: list[bool] = []
    told, ends = whole_lines(lines, finished=finished)
    for line in told:
        right, state = ladder.follow(state, line)
        labels.append(right)
    if labels and ends:
        labels[-1] = labels[-1] and state is not None and len(state) == 1
    return {"prompt": expression, "completions": told, "labels": labels, "finished": ends} if labels else None


def write(path: Path, rows: Iterable[dict[str, Any]], count: int | None = None) -> Path:
    """Write rows, at most so many, to a JSONL file; return its path. A file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    with half.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in islice(rows, count))
    return half.replace(path)
