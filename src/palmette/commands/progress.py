"""Progress on stderr: a bar on a terminal, plain lines anywhere else."""

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from palmette.units import format_bytes, format_count, format_seconds, one_line

if TYPE_CHECKING:
    from palmette.run.search import Progress, WorkerProgress

_PLAIN_SECONDS = 10.0
"""How often progress is said where stderr is no terminal."""
_SHOWN_SECONDS = 0.1
_MOST_WORKERS = 16
"""Workers that have a line of their own."""


class ProgressLine:
    """Shows what is done of how much, with tokens written, their rate and the time left. Its first call starts it."""

    def __init__(self, label: str, unit: str = "question") -> None:
        self._label = label = one_line(label, 80)
        self._unit = unit
        self._console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None, rate="loading", left="")
        self._begun: float | None = None
        self._first = 0
        self._said = self._drawn = 0.0
        self._noticed = 0
        self._workers: dict[str, TaskID] = {}

    def __enter__(self) -> "ProgressLine":
        if self._console.is_terminal:
            self._bar.start()
        elif self._unit == "question":
            print(f"{self._label}: loading", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def tell(self, progress: "Progress") -> None:
        """Show how far a search is, with every new notice, and the first time how many questions are skipped."""
        for notice in progress.notices[self._noticed :]:
            self._console.print(one_line(notice), highlight=False, markup=False, soft_wrap=True)
        self._noticed = len(progress.notices)
        if progress.skipped and self._begun is None:
            asked = progress.total + len(progress.skipped)
            print(
                f"{len(progress.skipped)} of {asked} questions cannot be asked and are skipped, the first because: "
                f"{progress.skipped[0]}",
                file=sys.stderr,
                flush=True,
            )
        is_said = self.show(progress.done, progress.total, progress.tokens)
        if progress.workers:
            self._show_workers(progress, is_said=is_said)

    def _show_workers(self, progress: "Progress", *, is_said: bool) -> None:
        """Show what each worker does and holds: a bar on a terminal, else one line for all after the run's own."""
        shown = progress.workers[:_MOST_WORKERS]
        if not self._console.is_terminal:
            if is_said:
                more = len(progress.workers) - len(shown)
                told = [f"{worker.name} on {worker.node or '?'}: {_doing(worker)}" for worker in shown]
                print("workers  " + "; ".join(told + [f"{more} more"] * (more > 0)), file=sys.stderr, flush=True)
            return
        for worker in shown:
            if worker.name not in self._workers:
                self._workers[worker.name] = self._bar.add_task("", total=None, rate="", left="")
            label = f"worker {worker.name} {worker.node}".rstrip()
            task = self._workers[worker.name]
            self._bar.update(task, description=label, total=progress.total, completed=worker.done, rate=_doing(worker))

    def show(self, done: int, total: int, tokens: int = 0) -> bool:
        """Show that `done` of `total` are finished and so many tokens are written; return whether a line was said."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._first, self._said = now, done, now
        if now - self._drawn >= _SHOWN_SECONDS or done == total:
            self._drawn = now
            self._bar.update(
                self._task,
                total=total,
                completed=done,
                rate=self._rate(now, done, tokens),
                left=self._left(now, done, total),
            )
        if not self._console.is_terminal and now - self._said >= _PLAIN_SECONDS:
            self._said = now
            left = self._left(now, done, total)
            rate = self._rate(now, done, tokens)
            told = ", ".join(filter(None, (f"{self._label}: {done}/{total} {self._unit}s", rate, left)))
            print(told, file=sys.stderr, flush=True)
            return True
        return False

    def _rate(self, now: float, done: int, tokens: int) -> str:
        assert self._begun is not None
        seconds = max(now - self._begun, 1e-9)
        if tokens:
            return f"{format_count(tokens)} tokens, {tokens / seconds:,.0f}/s"
        return f"{(done - self._first) / seconds:.2f}/s" if done > self._first else ""

    def _left(self, now: float, done: int, total: int) -> str:
        """Return the time left at the pace so far; nothing before something is finished."""
        assert self._begun is not None
        if done <= self._first:
            return ""
        return f"{format_seconds((total - done) * (now - self._begun) / (done - self._first))} left"


def _doing(worker: "WorkerProgress") -> str:
    done = f"{worker.done} done, {worker.in_flight} in flight" if worker.state == "searching" else worker.state
    return f"{done}, {format_bytes(worker.held_bytes)}" if worker.held_bytes else done
