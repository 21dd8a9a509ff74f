"""`palmette sweep` and `palmette demo`: several strategies, widths and seeds over one task, in one table."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette import registry
from palmette.commands import flags
from palmette.commands.progress import ProgressLine
from palmette.errors import ConfigError, RunError, StoppedError
from palmette.units import count_of, format_count, one_line_path

if TYPE_CHECKING:
    from palmette.report.paired import Finished
    from palmette.run.sweep import Cell, Sweep
    from palmette.settings import Config

DEMO_STRATEGIES = ("best_of_n", "beam", "dvts", "rebase", "ets", "espalier")
DEMO = {
    "policy.model": "seedling-words", "task.name": "words", "task.grade": 3, "task.generator": {"plain": True},
    "search.total_tokens": 700, "search.aggregate": "last",
}  # fmt: skip
"""Word problems of six to nine calculations, a policy that solves one in fifteen, a judge that finds wrong lines.

Scores are aggregated as ETS and REBASE publish it.
"""


def sweep(
    file: flags.RunFile = None,
    strategies: Annotated[str, typer.Option(help="Names with commas between.")] = ",".join(
        registry.built_ins("strategy")
    ),
    widths: Annotated[str, typer.Option(help="Numbers with commas between.")] = "4,16",
    seeds: Annotated[str, typer.Option(help="Numbers with commas between.")] = "0",
    policy: flags.Policy = None,
    reward: flags.Reward = None,
    task: flags.TaskName = None,
    questions: flags.Questions = None,
    config_file: flags.ConfigFile = None,
    out: flags.Out = None,
    settings: flags.Settings = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep in this folder.")] = None,
) -> None:
    """Compare strategies x widths x seeds over one task: a table, CSV, Markdown and a report."""
    from palmette.config import load_config
    from palmette.run.sweep import open_sweep

    given = {
        "policy.model": policy,
        "reward.model": reward,
        "task.name": task,
        "task.questions": questions,
        "out": out,
    }
    config_file = flags.one_file(file, config_file)
    overrides = flags.overrides_of(given, settings)
    if resume is not None:
        if config_file or overrides:
            raise ConfigError(
                "--resume continues a sweep with what it was told: leave the file, --questions, --set and --out out"
            )
        run(open_sweep(resume))
        return
    for key, flag in {"search.width": "--widths", "search.strategy": "--strategies", "seed": "--seeds"}.items():
        if key in overrides:
            raise ConfigError(f"--set {key}: a sweep has many of them: use {flag}")
    names = [name.strip() for name in strategies.split(",")]
    overrides.setdefault("search.strategy", "ets" if "ets" in names else names[0])
    start(
        load_config(config_file, overrides, strategies=names), names, flags.numbers_of("--widths", widths),
        flags.numbers_of("--seeds", seeds),
    )  # fmt: skip


def demo(
    questions: Annotated[int, typer.Option(help="Questions per strategy.", min=1)] = 16,
    width: Annotated[int, typer.Option(help="Branches in flight per question.", min=1)] = 16,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; must be new or empty.")] = None,
) -> None:
    """Compare the strategies on word problems with the shipped models: a table, and a report to look at."""
    from palmette.config import load_config

    folder = out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    base = load_config(None, {**DEMO, "task.questions": questions, "out": str(folder)})
    start(base, DEMO_STRATEGIES, [width], [base.seed])


def start(base: "Config", strategies: Sequence[str], widths: Sequence[int], seeds: Sequence[int]) -> None:
    """Run a new sweep and show its table."""
    from palmette.run.sweep import MEASURE, new_sweep

    made = new_sweep(base, strategies, widths, seeds)
    if MEASURE not in strategies:
        print(f"{MEASURE} at width {max(widths)} is added: every strategy is measured against it", file=sys.stderr)
    run(made)


def run(sweep: "Sweep") -> None:
    """Run what is left of a sweep, show its table, write CSV, Markdown and the page."""
    from rich.console import Console

    from palmette.commands.report import rejudging
    from palmette.report.compare import compare
    from palmette.report.page import write_page
    from palmette.report.rows import CAPTION, SHOWN, as_csv, as_markdown
    from palmette.report.table import plain_table, plain_text

    _run_cells(sweep)
    compared = compare(sweep.folders(), rejudging(trusted=True))
    # The width stands beside the strategy: 80 columns hold no more.
    columns = [column for column in SHOWN if column not in ("strategy", "width")]
    shown = plain_table("strategy", *(SHOWN[column] for column in columns))
    shown.caption = CAPTION
    for row in compared.rows:
        shown.add_row(plain_text(row.name), *(row.shown(column) for column in columns))
    Console().print(shown)
    _print_differences(sweep, compared.finished)
    written = {"sweep.csv": as_csv(compared.rows), "sweep.md": as_markdown(compared.rows)}
    for name, text in written.items():
        try:
            (sweep.folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write {sweep.folder / name}: {error.strerror}") from error
    page = write_page(compared, sweep.folder / "report.html")
    print(f"table   {one_line_path(sweep.folder / 'sweep.csv')}\nreport  {one_line_path(page)}")


def _print_differences(sweep: "Sweep", finished: "Mapping[str, Finished]") -> None:
    """Print each strategy beside REBASE, or else best-of-N, at the same width, over the same questions and seeds."""
    from rich.console import Console

    from palmette.report.paired import difference, difference_table

    other = next((name for name in ("rebase", "best_of_n") if name in sweep.strategies), None)
    pairs: dict[str, list[tuple[Finished, Finished]]] = {}
    for cell in sweep.cells:
        beside = replace(cell, strategy=other or cell.strategy)
        if beside != cell and cell.name in finished and beside.name in finished:
            pairs.setdefault(f"{cell.strategy} {cell.width}", []).append((finished[cell.name], finished[beside.name]))
    found = {name: told for name, runs in pairs.items() if (told := difference(runs, sweep.base.search.vote))}
    if other and found:
        Console().print(difference_table(found, other))


def _run_cells(sweep: "Sweep") -> None:
    from palmette.run.search import Listener
    from palmette.run.sweep import run_sweep

    cells, questions = sweep.cells, sweep.base.task.questions
    tokens = sum(sweep.config(cell).search.total_tokens * cell.width for cell in cells) * questions
    place = one_line_path(sweep.folder)
    print(f"{count_of(len(cells), 'run')}, at most {format_count(tokens)} tokens, in {place}", file=sys.stderr)
    with ExitStack() as lines:

        def listener_of(cell: "Cell") -> Listener:
            lines.close()
            return lines.enter_context(ProgressLine(cell.name)).tell

        try:
            run_sweep(sweep, listener_of)
        except KeyboardInterrupt:
            raise StoppedError(f"stopped; continue with: palmette sweep --resume {sweep.folder}") from None
