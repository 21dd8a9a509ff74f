"""The same questions on more and more workers: how much faster, and where more of them stop to help."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from palmette.simulate.costs import Costs, fit_costs
from palmette.simulate.outcome import Outcome
from palmette.simulate.setup import Learner, Setup
from palmette.simulate.simulation import simulate
from palmette.simulate.work import Question, Recorded, joined

BEND = 0.8
"""Workers are taken to help while each does at least this share of what one alone would."""


@dataclass(frozen=True)
class Point:
    """One size of a cluster: what came of it, and the share of each worker's time that was not lost to its size."""

    setup: Setup
    outcome: Outcome
    efficiency: float


def measured_costs(*runs: Recorded) -> Costs:
    """Return the costs of the work of runs, with ticks as many as their simulation has. Raises as `fit_costs` does."""
    ticks = sum(sum(event.ticks) for run in runs for event in run.occupancies)
    if not ticks or not all(run.questions for run in runs):
        return fit_costs(joined(runs))
    # What a tick costs changes no tick of one worker, so that any costs tell how many lanes they have.
    simulated = [simulate(run.questions, setup_of(run), Costs(1.0, 0.0)) for run in runs]
    costs = fit_costs(joined(runs), lanes_of(simulated))
    return costs.with_ticks(ticks, sum(outcome.ticks for outcome in simulated))


def lanes_of(simulated: Sequence[Outcome]) -> dict[int, float]:
    """Return the lanes of a tick by its size, the mean over simulated runs."""
    sums: dict[int, list[float]] = {}
    for size, (ticks, lanes) in ((size, own) for run in simulated for each in run.sizes for size, own in each.items()):
        known = sums.setdefault(size, [0.0, 0.0])
        known[0] += ticks
        known[1] += lanes
    return {size: lanes / ticks for size, (ticks, lanes) in sums.items() if ticks}


def setup_of(run: Recorded) -> Setup:
    """Return one worker with the settings of a run."""
    return Setup(in_flight=run.config.search.questions_in_flight, batch_rows=run.config.policy.batch_rows)


def draw(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Return so many of the questions, drawn with repetition; the same for the same seed."""
    return random.Random(seed).choices(questions, k=count)


def curve(
    questions: Sequence[Question],
    setups: Sequence[Setup],
    costs: Costs,
    *,
    seed: int = 0,
    learner: Learner | None = None,
) -> list[Point]:
    """Return a point for each setup. Efficiency compares with the first one, by workers and seconds."""
    points: list[Point] = []
    for setup in setups:
        outcome = simulate(questions, setup, costs, seed=seed, learner=learner)
        first = points[0].outcome if points else outcome
        efficiency = first.seconds * first.workers / (outcome.seconds * outcome.workers) if outcome.seconds else 1.0
        points.append(Point(setup, outcome, efficiency))
    return points


def bend(points: Sequence[Point]) -> Point:
    """Return the largest size before efficiency first falls below `BEND`."""
    last = points[0]
    for point in points:
        if point.efficiency < BEND:
            break
        last = point
    return last


def sizes(most: int) -> list[int]:
    """Return powers of two up to `most`, and `most` itself."""
    found = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*found, most]


def with_workers(setup: Setup, workers: int, per_node: int) -> Setup:
    """Return the setup with so many workers: whole nodes, or one node with fewer."""
    if workers <= per_node:
        return replace(setup, nodes=1, workers=workers, devices=workers)
    return replace(setup, nodes=-(-workers // per_node), workers=per_node, devices=per_node)
