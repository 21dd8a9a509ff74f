"""Shows simulated runs: a terminal table, lines of text, CSV, JSON values, or a page with the curves."""

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from palmette.errors import RunError
from palmette.report.plan_bars import STYLE
from palmette.report.simulation_plot import plots
from palmette.report.table import plain_table
from palmette.simulate.costs import Costs
from palmette.simulate.scaling import BEND, Point
from palmette.units import count_of, format_seconds

_COLUMNS = (
    "workers", "seconds", "per question", "per update", "efficiency", "utilisation", "stragglers", "question p50",
    "question p95", "longest", "failures", "asked again",
)  # fmt: skip


def simulation_values(points: Sequence[Point], bent: Point, routed: Point, costs: Costs) -> dict[str, Any]:
    """Return everything as JSON values; times in seconds."""
    return {
        "costs": {
            **vars(costs),
            "dispatch_seconds": points[-1].setup.dispatch_seconds,
            "contention": points[-1].setup.contention,
        },
        "points": [_values(point) for point in points],
        "bend": bent.outcome.workers,
        "routed": {"routing": routed.setup.routing, **_values(routed)},
    }


def _values(point: Point) -> dict[str, Any]:
    outcome = point.outcome
    return {
        "workers": outcome.workers, "seconds": outcome.seconds, "per_question": outcome.per_question,
        "per_update": outcome.per_update, "efficiency": point.efficiency, "utilisation": outcome.utilisation,
        "stragglers": outcome.tail_share, "question_p50": outcome.quantile(0.5), "question_p95": outcome.quantile(0.95),
        "longest": outcome.quantile(1.0), "failures": outcome.failures, "asked_again": outcome.lost_questions,
        "prefill_tokens": outcome.prefill_tokens,
    }  # fmt: skip


def _cells(point: Point) -> list[str]:
    outcome = point.outcome
    update = outcome.per_update
    return [
        f"{outcome.workers:,}", format_seconds(outcome.seconds), _short(outcome.per_question),
        "" if update is None else _short(update), f"{point.efficiency:.0%}", f"{outcome.utilisation:.0%}",
        f"{outcome.tail_share:.0%}", _short(outcome.quantile(0.5)), _short(outcome.quantile(0.95)),
        _short(outcome.quantile(1.0)), f"{outcome.failures:,}", f"{outcome.lost_questions:,}",
    ]  # fmt: skip


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else format_seconds(seconds)


def _shown(points: Sequence[Point]) -> list[int]:
    """Return the columns that have something to tell."""
    has_updates = any(point.outcome.update_seconds for point in points)
    has_failures = any(point.setup.failures_per_hour for point in points)
    hidden = {*(() if has_updates else (3,)), *(() if has_failures else (10, 11))}
    return [place for place in range(len(_COLUMNS)) if place not in hidden]


def simulation_table(points: Sequence[Point]) -> Table:
    """Return a row for each size."""
    shown = _shown(points)
    table = plain_table(*(_COLUMNS[place] for place in shown))
    for point in points:
        cells = _cells(point)
        table.add_row(*(cells[place] for place in shown))
    return table


def summary_lines(points: Sequence[Point], bent: Point, routed: Point, costs: Costs, measured: int) -> list[str]:
    """Return what the table says: where the curve bends, what routing does, and what all is computed from."""
    last, outcome = points[-1], bent.outcome
    if bent is last:
        lines = [f"no bend up to {count_of(last.outcome.workers, 'worker')}: efficiency is {last.efficiency:.0%} there"]
    else:
        after = next(point for point in points if point.outcome.workers > outcome.workers)
        lines = [
            f"the curve bends at {count_of(outcome.workers, 'worker')}: efficiency is {bent.efficiency:.0%} there and "
            f"{after.efficiency:.0%} at {after.outcome.workers:,} (below {BEND:.0%})"
        ]
    ratio = routed.outcome.seconds / outcome.seconds if outcome.seconds else 1.0
    lines.append(
        f"{routed.setup.routing} instead of {bent.setup.routing} routing at {count_of(outcome.workers, 'worker')}: "
        f"{ratio:.2f} times the seconds, {routed.outcome.prefill_tokens:,} tokens of prefixes computed instead of "
        f"{outcome.prefill_tokens:,}"
    )
    lines.append(
        f"from {count_of(measured, 'measured question')}: a tick {costs.tick_seconds * 1e3:.2f} ms, "
        f"{costs.row_seconds * 1e6:.1f} us a row and {costs.lane_seconds * 1e6:.1f} us a lane, a step "
        f"{costs.step_seconds * 1e3:.2f} ms, a question {costs.question_seconds * 1e3:.1f} ms, of the driver "
        f"{last.setup.dispatch_seconds * 1e3:.2f} ms; {costs.told}"
    )
    if last.setup.contention:
        lines.append(f"each worker of a node slows every other one of it down by {last.setup.contention:.1%}")
    return lines


def write_csv(points: Sequence[Point], path: Path) -> None:
    """Write a row for each size, times in seconds. Raises RunError if it cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(_values(points[0])))
            writer.writeheader()
            writer.writerows(_values(point) for point in points)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def write_page(points: Sequence[Point], bent: Point, lines: Sequence[str], path: Path) -> None:
    """Write the curves and the table as one page without scripts. Raises RunError if it cannot be written."""
    shown = _shown(points)
    head = "".join(f"<th>{escape(_COLUMNS[place])}</th>" for place in shown)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(_cells(point)[place])}</td>" for place in shown) + "</tr>" for point in points
    )
    told = "".join(f"<p>{escape(line)}</p>" for line in lines)
    count = points[-1].outcome.workers
    style = (
        "table{border-collapse:collapse;font-size:13px;margin-top:18px}th{font-weight:600}"
        "th,td{text-align:right;padding:3px 10px;border-bottom:1px solid #e2e0d8;white-space:nowrap}"
        ".table{overflow-x:auto}"
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>palmette simulate</title>'
        f"<style>{STYLE}{style}</style></head><body><main><h1>Simulated: 1 to {count:,} workers</h1>"
        f'{told}{plots(points, bent)}<div class="table"><table><tr>{head}</tr>{rows}</table></div></main></body>'
        "</html>\n"
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the page {path}: {error.strerror}") from error
