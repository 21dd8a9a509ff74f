"""`palmette simulate`: tells from a measured run how the same work would go on many workers."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.commands import flags
from palmette.errors import ConfigError
from palmette.units import one_line_path

if TYPE_CHECKING:
    from palmette.settings import Config

_MOST_WORKERS, _MOST_QUESTIONS, _MOST_UPDATES = 10_000, 1_000_000, 10_000


def simulate(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a search: its steps and their cost.")],
    devices: Annotated[
        str | None, typer.Option(help='Like "125 nodes x 8x80GiB"; the plan says how many workers that is.')
    ] = None,
    workers: Annotated[int | None, typer.Option(help="How many workers, in place of --devices.")] = None,
    per_node: Annotated[int, typer.Option(help="With --workers: how many of them a node has.")] = 8,
    questions: Annotated[int, typer.Option(help="How many questions, drawn from the run's.")] = 10_000,
    in_flight: Annotated[int | None, typer.Option(help="Questions of a worker at a time; default: the run's.")] = None,
    routing: Annotated[
        str, typer.Option(help="affine: a question stays with its worker; spread: any worker.")
    ] = "affine",
    dispatch: Annotated[
        float | None, typer.Option(help="Seconds of the driver for each question; default: as measured.")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(help="The same search by several workers on one node: they slow each other down.")
    ] = None,
    failures: Annotated[float, typer.Option(help="Failures of a node per hour.")] = 0.0,
    repair: Annotated[float, typer.Option(help="Seconds until a failed node is back.")] = 300.0,
    train: Annotated[Path | None, typer.Option(help="A training run: simulate its updates too.")] = None,
    updates: Annotated[int, typer.Option(help="With --train: how many updates.")] = 20,
    ranks: Annotated[
        int | None, typer.Option(help="With --train: ranks that learn; default: by the plan, or 1.")
    ] = None,
    staleness: Annotated[int, typer.Option(help="With --train: updates that weights may be old.")] = 0,
    seed: Annotated[int, typer.Option(help="Draws questions and failures.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="Write the table as CSV.")] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page with the curves.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Tell how long a measured run's work would take on up to 1,000 devices and more; nothing is run.

    Sizes double from one worker to all of them; the largest before efficiency falls below 80% is where the curve bends.
    """
    from rich.console import Console

    from palmette.report.simulation import simulation_table, simulation_values, summary_lines, write_csv, write_page
    from palmette.simulate.measured import (
        assumed_dispatch,
        contention_of,
        measured_dispatch,
        read_learner,
        read_search,
        with_updates,
    )
    from palmette.simulate.scaling import bend, curve, draw, measured_costs, setup_of, sizes, with_workers
    from palmette.simulate.setup import other_routing, read_routing
    from palmette.simulate.work import read_run

    _check(
        ("--questions", questions, 1, _MOST_QUESTIONS), ("--workers", workers, 1, _MOST_WORKERS),
        ("--per-node", per_node, 1, 1024), ("--updates", updates, 1, _MOST_UPDATES),
        ("--ranks", ranks, 1, _MOST_WORKERS), ("--staleness", staleness, 0, 1000),
        ("--in-flight", in_flight, 1, 65_536), ("--dispatch", dispatch, 0, 3600),
        ("--failures", failures, 0, 1e6), ("--repair", repair, 0, 1e9),
    )  # fmt: skip
    if (devices is None) == (workers is None):
        raise ConfigError("give --devices, like '16 nodes x 8x80GiB', or --workers, like 1000")
    recorded = read_search(run)
    planned_ranks, moved, learner = 1, 0.0, None
    if devices is not None:
        config = recorded.config if train is None else read_run(train).config
        workers, per_node, planned_ranks, moved = _placed(config, devices, train=train is not None)
    assert workers is not None
    others = [] if beside is None else [read_search(beside)]
    measured = measured_dispatch(recorded, *others) if dispatch is None else dispatch
    setup = setup_of(recorded)
    setup = replace(
        setup, in_flight=in_flight or setup.in_flight, routing=read_routing(routing),
        dispatch_seconds=assumed_dispatch(recorded) if measured is None else measured,
        contention=contention_of(recorded, others[0]) if others else 0.0,
        failures_per_hour=failures, repair_seconds=repair,
    )  # fmt: skip
    if train is not None:
        ranks = ranks or planned_ranks
        learner = read_learner(train, recorded.config, ranks=ranks, moved_seconds=moved)
        learner = with_updates(learner, updates, staleness, nodes=-(-ranks // per_node))
        questions = learner.questions * updates
    drawn, costs = draw(recorded.questions, questions, seed), measured_costs(recorded)
    points = curve(
        drawn, [with_workers(setup, count, per_node) for count in sizes(workers)], costs, seed=seed, learner=learner
    )
    bent = bend(points)
    routed = replace(bent.setup, routing=other_routing(bent.setup.routing))
    [routed_point] = curve(drawn, [routed], costs, seed=seed, learner=learner)
    if csv is not None:
        write_csv(points, csv)
    lines = summary_lines(points, bent, routed_point, costs, len(recorded.questions))
    if measured is None:
        lines.append("the run had no driver: its time is taken from docs/simulate.md, by the steps of a question")
    if page is not None:
        write_page(points, bent, lines, page)
    if as_json:
        print(json.dumps(simulation_values(points, bent, routed_point, costs), indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(simulation_table(points))
    for line in lines:
        print(line)
    for path in (csv, page):
        if path is not None:
            print(f"written {one_line_path(path)}")


def _check(*told: tuple[str, float | None, float, float]) -> None:
    for flag, value, least, most in told:
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{flag} is {value}: give {least:,g} to {most:,g}")


def _placed(config: "Config", devices: str, *, train: bool) -> tuple[int, int, int, float]:
    """Return workers, workers of a node, learner ranks, and the seconds that an update's transfers take, by the plan.

    Raises BudgetError where the run does not fit.
    """
    from palmette.config import load_config
    from palmette.errors import BudgetError
    from palmette.planner.cluster.nodes import is_cluster
    from palmette.report.cluster_plan import plan_cluster_config

    text = devices if is_cluster(devices) else f"1 node x {devices}"
    planned = plan_cluster_config(load_config(config, {"memory.devices": text}), train=train)
    if planned.refusal is not None:
        raise BudgetError(planned.refusal)
    each = max(1, len(planned.cluster.gpus)) // planned.planned.worker_devices
    seconds = sum(transfer.seconds for transfer in planned.planned.moved)
    return planned.planned.workers, max(1, each), max(1, planned.planned.ranks), seconds
