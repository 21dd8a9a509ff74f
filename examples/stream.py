"""Search many questions, show each result as soon as it is ready, and record the run.

Prints a line for each question in the order in which they finish, progress on stderr, and the page that
`palmette report FOLDER` writes about the recorded run.
"""

import subprocess
import sys
from pathlib import Path

import palmette

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/streamed")
task = palmette.load_task("ladder", questions=6, grade=2)
told: set[int] = set()


def show(progress: palmette.Progress) -> None:
    """Called after every few tokens; say when another question is finished."""
    if progress.done not in told:
        told.add(progress.done)
        print(f"{progress.done}/{progress.total} questions, {progress.tokens} tokens", file=sys.stderr)


with palmette.Searcher(policy="seedling", strategy="rebase", width=4, seed=1) as searcher:
    for result in searcher.stream(task, out=folder, progress=show):
        print(f"{result.question.id}: {result.answer}, {result.outcome}", flush=True)

# The same as `palmette report runs/streamed` in a shell.
subprocess.run([sys.executable, "-m", "palmette", "report", str(folder)], check=True)
