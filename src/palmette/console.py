"""What the commands show on a terminal: progress on stderr, results on stdout."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from palmette.config import Config, load_config
from palmette.errors import BackendError, BudgetError, ConfigError, PalmetteError, RunError, StoppedError
from palmette.events import FILE_NAME, read_events
from palmette.planner.advice import reason, refusal_of, suggestions
from palmette.planner.run_plan import devices_of, plan_run
from palmette.report.compare import compare
from palmette.report.grid import CAPTION, SHOWN, as_csv, as_markdown
from palmette.report.page import write_page
from palmette.report.plan_bars import write_plan_page
from palmette.report.plan_table import plan_lines, plan_tables, plan_values
from palmette.report.table import OUTCOMES, accuracy_values, answers_table, plain_table, summary_values
from palmette.run import search as run
from palmette.run.sweep import MEASURE, PLAN, Cell, Sweep, new_sweep, open_sweep, run_sweep
from palmette.search.answer import VOTES
from palmette.search.rejudge import Rejudge
from palmette.search.rejudge import evaluate as evaluate_run
from palmette.search.replay import replay
from palmette.search.summary import Accuracy, Summary, summarize
from palmette.tasks.load import load_task
from palmette.units import format_bytes, format_count, format_seconds, one_line

DEMO_STRATEGIES = ("best_of_n", "beam", "dvts", "rebase", "ets")
_PIPED_COLUMNS = 160
_PLAIN_SECONDS = 10.0  # How often progress is said where stderr is no terminal.


class Meter:
    """A progress bar with rate and time left; plain lines where stderr is no terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None, rate="loading")
        self._begun: float | None = None
        self._first = 0
        self._said = 0.0

    def __enter__(self) -> "Meter":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are finished; the first call starts the clock."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._first, self._said = now, done, now
        rate = (done - self._first) / max(now - self._begun, 1e-9)
        self._bar.update(self._task, total=total, completed=done, rate=f"{rate:.2f}/s" if rate else "")
        if not self._console.is_terminal and now - self._said >= _PLAIN_SECONDS and rate:
            self._said = now
            left = format_seconds((total - done) / rate)
            print(f"{self._label}: {done}/{total}, {rate:.2f}/s, {left} left", file=sys.stderr, flush=True)


def search(config: Config, *, as_json: bool) -> None:
    """Say what a search may cost, run it, print what it found."""
    folder = run.new_folder(config)
    print(_cost(config, folder), file=sys.stderr)
    _measured(folder, config.search.strategy, partial(run.start_search, folder, config))
    _show(folder, as_json=as_json)


def resume(folder: Path, *, as_json: bool) -> None:
    """Continue a search, print what all of it found."""
    _refuse_sweep(folder, f"palmette sweep --resume {folder}")
    _measured(folder, folder.name, partial(run.resume_search, folder))
    _show(folder, as_json=as_json)


def _show(folder: Path, *, as_json: bool) -> None:
    """Print what a run found, then write its page: results are not lost where the page cannot be written."""
    summary = summarize(read_events(folder))
    page = folder / "report.html"
    if as_json:
        print(json.dumps({"run": str(folder), "report": str(page), **summary_values(summary)}, indent=2))
    else:
        console = Console()
        console.print(answers_table(summary))
        console.print(_tokens_line(summary), highlight=False, markup=False, soft_wrap=True)
        if summary.out_of_room:
            print(
                f"{summary.out_of_room} of {summary.questions} trees ended because their part of search.kv_budget "
                f"({summary.config['search']['kv_budget']}) was full: give more, or lower search.questions_in_flight",
                file=sys.stderr,
            )
        print(f"run     {folder}\nreport  {page}")
    write_page(compare([folder], _referees()), page)


def demo(questions: int, width: int, out: Path | None) -> None:
    """Search the same questions with every strategy, then show one table."""
    folder = out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    base = load_config(None, {"task.questions": questions, "out": str(folder)})
    sweep(base, DEMO_STRATEGIES, [width], [base.seed])


def sweep(base: Config, strategies: Sequence[str], widths: Sequence[int], seeds: Sequence[int]) -> None:
    """Run a new sweep and show its table."""
    plan = new_sweep(base, strategies, widths, seeds)
    if MEASURE not in strategies:
        print(f"{MEASURE} at width {max(widths)} is added: every strategy is measured against it", file=sys.stderr)
    _sweep(plan)


def resume_sweep(folder: Path) -> None:
    """Run what is left of a sweep and show its table."""
    _sweep(open_sweep(folder))


def _sweep(plan: Sweep) -> None:
    tokens = sum(plan.config(cell).search.total_tokens * cell.width for cell in plan.cells) * plan.base.task.questions
    print(f"{len(plan.cells)} runs, at most {format_count(tokens)} tokens, in {plan.folder}", file=sys.stderr)
    with ExitStack() as bars:

        def progress(cell: Cell) -> Meter:
            bars.close()
            return bars.enter_context(Meter(cell.name))

        try:
            run_sweep(plan, progress)
        except KeyboardInterrupt:
            raise StoppedError(f"stopped; continue with: palmette sweep --resume {plan.folder}") from None
    compared = compare(plan.folders(), _referees())
    # The width stands beside the strategy: 80 columns hold no more.
    columns = [column for column in SHOWN if column not in ("strategy", "width")]
    shown = plain_table("strategy", *(SHOWN[column] for column in columns))
    shown.caption = CAPTION
    for row in compared.rows:
        shown.add_row(row.name, *(row.shown(column) for column in columns))
    Console().print(shown)
    written = {"sweep.csv": as_csv(compared.rows), "sweep.md": as_markdown(compared.rows)}
    for name, text in written.items():
        try:
            (plan.folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write {plan.folder / name}: {error.strerror}") from error
    page = write_page(compared, plan.folder / "report.html")
    print(f"table   {plan.folder / 'sweep.csv'}\nreport  {page}")


def evaluate(folder: Path, *, as_json: bool) -> None:
    """Answer a run's questions again in every way there is, from its trees."""
    _refuse_sweep(folder, f"name one of its runs, for example {folder}/RUN")
    config = run.run_config(folder)
    task = load_task(config.task)
    referee = Rejudge(run.JUDGES[task.judge](config.task.verify_seconds), task.questions)
    found = evaluate_run(replay(read_events(folder)).values(), referee)
    if as_json:
        values = {how: {vote: accuracy_values(votes[vote]) for vote in VOTES} for how, votes in found.items()}
        print(json.dumps(values, indent=2))
        return
    table = plain_table("fold", *VOTES)
    questions = found[config.search.fold][config.search.vote].questions
    table.title = f"{one_line(folder.resolve().name, 40)}: {questions} questions, accuracy with its 95% interval"
    for how, votes in found.items():
        table.add_row(how, *(_with_interval(votes[vote]) for vote in VOTES))
    Console().print(table)


def _with_interval(accuracy: Accuracy) -> str:
    low, high = accuracy.interval
    return f"{accuracy.share:.3f} ({low:.2f} - {high:.2f})"


def models(*, as_json: bool) -> None:
    """List the zoo."""
    from palmette.zoo.catalog import catalog

    cards = catalog()
    if as_json:
        print(json.dumps([vars(card) for card in cards], indent=2))
        return
    table = plain_table("name", "role", "params", "bytes", "license")
    table.add_column("PyPI package", justify="left")
    for card in cards:
        table.add_row(
            card.name,
            card.role,
            format_count(card.parameters) if card.parameters else "?",
            format_bytes(card.bytes) if card.bytes else "absent",
            card.license,
            card.source,
        )
    Console().print(table)


def plan(config: Config, *, train: bool, server: str, predict: bool, as_json: bool, page: Path | None) -> None:
    """Show what a run would hold, device by device; raise BudgetError where it does not fit."""
    predicted, notes = _predicted(config) if predict else ({}, ())
    job, planned = plan_run(config, train=train, server=server, predicted=predicted)
    planned = replace(planned, remarks=(*planned.remarks, *notes))
    if page is not None:
        write_plan_page(planned, page)
    # What was predicted holds for these settings alone: others are tried by formula.
    advice = [] if planned.fits else suggestions(replace(job, predicted={}), devices_of(config))
    if as_json:
        why = None if planned.fits else reason(job, planned)
        print(json.dumps(plan_values(planned, why, advice), indent=2))
    else:
        console = _wide_console()
        for table in plan_tables(planned, console.width):
            console.print(table)
        for line in plan_lines(planned):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if page is not None:
            print(f"page    {page}")
    if not planned.fits:
        raise BudgetError(refusal_of(job, planned, advice))


def _wide_console() -> Console:
    """Return a console for wide tables: a file or a pipe has the columns that its reader wants, if none are told."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPED_COLUMNS)


def _predicted(config: Config) -> tuple[dict[str, int], tuple[str, ...]]:
    try:
        from palmette.planner.predict import predicted_lines
    except ImportError as error:
        raise BackendError(f"--predict runs the learner and needs {error.name}: plan without it") from error
    return predicted_lines(config)


def report(folders: Sequence[Path], out: Path | None) -> None:
    """Write the page about runs, or about all runs of a sweep, and say where it is."""
    named = [run for folder in folders for run in (_cells(folder) if (folder / PLAN).is_file() else [folder])]
    runs = list({run.resolve(): run for run in named}.values())
    default = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    print(write_page(compare(runs, _referees()), out or default))


def _cells(folder: Path) -> list[Path]:
    if begun := [path for path in open_sweep(folder).folders() if (path / FILE_NAME).is_file()]:
        return begun
    raise RunError(f"{folder} is a sweep of which no run was begun; begin with: palmette sweep --resume {folder}")


def _referees() -> Callable[[Config], Rejudge]:
    """Return who builds a run's referee, each task loaded once.

    A run may outlive its task: where that cannot be loaded any more its answers are read, but not judged again.
    """
    built: dict[str, Rejudge] = {}

    def referee_of(config: Config) -> Rejudge:
        key = config.task.model_dump_json()
        if key not in built:
            try:
                task = load_task(config.task)
                judge, questions = task.judge, task.questions
            except PalmetteError as error:
                print(f"palmette: answers are not judged again: {one_line(str(error))}", file=sys.stderr)
                judge, questions = ("gym" if config.task.name.startswith("rg:") else "math"), ()
            built[key] = Rejudge(run.JUDGES[judge](config.task.verify_seconds), questions)
        return built[key]

    return referee_of


def grade(file: Path, seconds: float, *, as_json: bool) -> None:
    """Check every row of a file; print a verdict a row or the four counts."""
    from palmette.score.verify import grade as grade_solution
    from palmette.tasks.jsonl import read_rows

    rows = [(number, *_pair(row, f"{file}, line {number}"), row) for number, row in read_rows(file)]
    counts: Counter[str] = Counter()
    agreed = judged = 0
    with Meter("grade") as meter:
        for place, (number, solution, reference, row) in enumerate(rows, start=1):
            outcome = grade_solution(solution, reference, seconds=seconds).value
            counts[outcome] += 1
            if isinstance(row.get("is_correct"), bool):
                judged += 1
                agreed += row["is_correct"] == (outcome == "correct")
            if as_json:
                print(json.dumps({"line": number, "outcome": outcome}))
            meter(place, len(rows))
    if as_json:
        return
    table = plain_table("outcome", "rows", "share")
    for outcome in OUTCOMES:
        table.add_row(outcome.replace("_", " "), str(counts[outcome]), f"{counts[outcome] / len(rows):.1%}")
    Console().print(table)
    if judged:
        print(f"agrees with is_correct in {agreed} of {judged} rows ({agreed / judged:.2%})")


def _refuse_sweep(folder: Path, instead: str) -> None:
    if (folder / PLAN).is_file():
        raise ConfigError(f"{folder} is a sweep, not a run: {instead}")


def _measured(folder: Path, label: str, work: Callable[[Meter], None]) -> None:
    """Do the work under a progress bar; say how to continue what Ctrl-C has stopped."""
    with Meter(label) as meter:
        try:
            work(meter)
        except KeyboardInterrupt:
            again = f"; continue with: palmette search --resume {folder}" if (folder / FILE_NAME).exists() else ""
            raise StoppedError(f"stopped{again}") from None


def _cost(config: Config, folder: Path) -> str:
    """Say what the run may cost at the most, before it starts."""
    settings = config.search
    tokens = config.task.questions * settings.width * settings.total_tokens
    task = one_line(config.task.name, 80)
    return (
        f"up to {config.task.questions} questions of {task}, {settings.strategy} at width {settings.width}: "
        f"at most {format_count(tokens)} tokens ({settings.total_tokens} a branch); events in {folder}"
    )


def _tokens_line(summary: Summary) -> str:
    peak, unshared = format_count(summary.peak_kv_tokens), format_count(summary.peak_separate_kv_tokens)
    return (
        f"per question: {format_count(summary.generated_tokens)} tokens, KV {format_count(summary.mean_kv_tokens)} "
        f"mean, {peak} peak ({unshared} unshared); {format_seconds(summary.seconds)} in all"
    )


def _pair(row: dict[str, Any], place: str) -> tuple[str, str]:
    """Return a row's solution and the reference it is checked against."""
    solution, reference = row.get("solution"), row.get("reference", row.get("answer"))
    if not isinstance(solution, str):
        raise ConfigError(f"{place}: needs 'solution', a text")
    if isinstance(reference, bool) or not isinstance(reference, str | int | float):
        raise ConfigError(f"{place}: needs 'reference' or 'answer', a text or a number")
    return solution, str(reference)
