"""What the recipes for `words` have in common: rows by `palmette rows`, and a policy's own solutions with labels."""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palmette import Searcher, SearchResult, load_task
from palmette.backends.backend import Message
from palmette.tasks.words.check import check_solution
from palmette.tasks.words.reading import read_problem
from palmette.tasks.words.solution import Style
from recipes.commands import whole_lines


def write_rows(path: Path, grades: str, count: int, *flags: str, seed: int, style: Style = "goals") -> Path:
    """Write rows of solutions to plain questions that lead back from what is asked, unless they are there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        given = ["--grades", grades, "--rows", str(count), "--seed", str(seed), "--style", style, "--plain-questions"]
        subprocess.run([sys.executable, "-m", "palmette", "rows", str(path), *given, *flags], check=True)
    return path


def labeled(messages: Sequence[Message], lines: Sequence[str], *, finished: bool) -> dict[str, Any] | None:
    """Return a solution as a row of `palmette train-prm`: a step is right if it follows and says something new.

    A judge that takes repetitions for right lets a search keep branches that do not end. None if the solution has no
    whole line. The row ends before an empty line, and before the last line of one that was cut.
    """
    told, ends = whole_lines(lines, finished=finished)
    if not told:
        return None
    problem = read_problem(messages[-1]["content"].split("\n")[0])
    labels = [check.advances for check in check_solution(problem, "\n".join(told))]
    return {"prompt": [dict(message) for message in messages], "completions": told, "labels": labels, "finished": ends}


def labels_of(results: Iterable[SearchResult]) -> Iterator[dict[str, Any]]:
    """Yield every solution of the searches as a row with labels, those without a whole line left out."""
    for result in results:
        for leaf in result.leaves:
            lines = [step.text for step in result.tree.steps(leaf.id)]
            row = labeled(result.question.messages, lines, finished=leaf.finished)
            if row is not None:
                yield row


def search(policy: Searcher, count: int, split: str, grade: int, seed: int) -> list[SearchResult]:
    """Let a policy solve questions in plain words."""
    return policy.search(
        load_task("words", questions=count, split=split, grade=grade, seed=seed, generator={"plain": True})
    )


def samples(policy: Searcher, counts: Mapping[int, int], share: float) -> Iterator[SearchResult]:
    """Let a policy solve train questions: a share of so many of each grade, four at least."""
    for grade, count in counts.items():
        yield from search(policy, max(4, round(count * share)), "train", grade, seed=9)


def tell_solved(policy: Searcher, count: int, grades: Iterable[int]) -> None:
    """Print how often one solution is right, on test questions of each grade."""
    for grade in grades:
        results = search(policy, count, "test", grade, seed=0)
        outcomes = [leaf.outcome == "correct" for result in results for leaf in result.leaves]
        print(
            f"policy: pass@1 {sum(outcomes) / len(outcomes):.3f} on {count} test questions of grade {grade}", flush=True
        )
