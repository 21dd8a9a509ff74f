"""`palmette grade`: checks solutions against references and counts the four outcomes."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from palmette.commands.progress import ProgressLine
from palmette.errors import ConfigError


def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Rows with solution and reference or answer.")],
    seconds: Annotated[float, typer.Option(help="Time limit for one answer.", min=0.1)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one verdict a row as JSON.")] = False,
) -> None:
    """Check solutions against references and count the four outcomes."""
    from rich.console import Console

    from palmette.api import grade as grade_solution
    from palmette.report.table import OUTCOMES, plain_table
    from palmette.tasks.sources.jsonl import read_rows

    rows = [(number, *_pair(row, f"{file}, line {number}"), row) for number, row in read_rows(file)]
    counts: Counter[str] = Counter()
    agreed = judged = 0
    with ProgressLine("grade", "row") as line:
        for place, (number, solution, reference, row) in enumerate(rows, start=1):
            outcome = grade_solution(solution, reference, seconds=seconds).value
            counts[outcome] += 1
            if isinstance(row.get("is_correct"), bool):
                judged += 1
                agreed += row["is_correct"] == (outcome == "correct")
            if as_json:
                print(json.dumps({"line": number, "outcome": outcome}))
            line.show(place, len(rows))
    if as_json:
        return
    table = plain_table("outcome", "rows", "share")
    for outcome in OUTCOMES:
        table.add_row(outcome.replace("_", " "), str(counts[outcome]), f"{counts[outcome] / len(rows):.1%}")
    Console().print(table)
    if judged:
        print(f"agrees with is_correct in {agreed} of {judged} rows ({agreed / judged:.2%})")


def _pair(row: dict[str, Any], place: str) -> tuple[str, str]:
    """Return a row's solution and the reference it is checked against."""
    solution, reference = row.get("solution"), row.get("reference", row.get("answer"))
    if not isinstance(solution, str):
        raise ConfigError(f"{place}: needs 'solution', a text")
    if isinstance(reference, bool) or not isinstance(reference, str | int | float):
        raise ConfigError(f"{place}: needs 'reference' or 'answer', a text or a number")
    return solution, str(reference)
