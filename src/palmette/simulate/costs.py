"""What a search's work costs, fitted to the seconds that a measured run spent on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palmette.errors import RunError
from palmette.simulate.work import Recorded

Point = tuple[float, float, float, float]
"""Ticks that belong together: how many, their rows, their lanes, their seconds."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a worker's work on one device of its own.

    A tick takes `tick_seconds`, `row_seconds` for each row and for each token of a prompt that it computes, and
    `lane_seconds` for each lane, which rows of the same text share; a step that is scored `step_seconds`, with
    embedding and allocation; a question `question_seconds`, judging among it.
    """

    tick_seconds: float
    row_seconds: float
    step_seconds: float = 0.0
    question_seconds: float = 0.0
    lane_seconds: float = 0.0
    told: str = ""
    """How well they are known, for people."""

    def tick(self, rows: float, lanes: float) -> float:
        """Return the seconds of one tick with so many rows in so many lanes."""
        return self.tick_seconds + self.row_seconds * rows + self.lane_seconds * lanes

    def with_ticks(self, measured: float, simulated: float) -> "Costs":
        """Return the same costs with ticks of another length, where a run had fewer or more ticks than simulated.

        A run that drafts tokens has fewer.
        """
        if not measured or not simulated:
            return self
        return replace(self, tick_seconds=self.tick_seconds * measured / simulated)


def fit_costs(run: Recorded, lanes: Mapping[int, float] | None = None) -> Costs:
    """Return what the work of a run cost. Raises RunError where its events do not tell.

    `lanes` are those of a tick by its size, see `Worker.sizes`; without them every row is a lane.
    """
    seconds = sum(session.seconds for session in run.sessions)
    if not run.questions or not seconds:
        raise RunError("the run has no finished question, or no session that ended: there is nothing to simulate from")
    spent: dict[str, float] = {}
    for event in run.occupancies:
        for activity, bins in event.spent.items():
            spent[activity] = spent.get(activity, 0.0) + sum(bins)
    points = tick_points(run, lanes)
    policy = spent.get("policy", 0.0) or seconds
    if points:
        tick, row, lane = nonnegative_fit(points)
        scale = policy / sum(tick * ticks + row * rows + lane * own for ticks, rows, own, _ in points)
        told = f"fitted to {sum(point[0] for point in points):,.0f} ticks"
    else:
        # Servers do not tell their ticks: the longest step of a wave is the number of its ticks.
        longest = sum(max(wave.steps, default=0) for question in run.questions for wave in question.waves)
        tick, row, lane, scale = policy / max(1, longest), 0.0, 0.0, 1.0
        told = "the run does not tell its ticks: all are taken to be equal, whatever their rows"
    steps = sum(question.steps for question in run.questions)
    waves = sum(value for activity, value in spent.items() if activity != "policy")
    rest = max(0.0, seconds - policy - waves)
    each = waves / max(1, steps), rest / len(run.questions)
    return Costs(scale * tick, scale * row, *each, scale * lane, told)


def tick_points(run: Recorded, lanes: Mapping[int, float] | None = None) -> list[Point]:
    """Return the ticks of a run by size, or by moment where it does not tell sizes. A prompt's token counts as a row.

    Without `lanes` there are none.
    """
    tokens = sum(question.tokens for question in run.questions)
    each_row = 1 + sum(question.prompt_tokens for question in run.questions) / max(1, tokens)
    sizes = [size for event in run.occupancies for size in event.by_size]
    if sizes:
        known = lanes or {}
        return [
            (size.ticks, size.rows * each_row, size.ticks * known.get((size.rows // size.ticks).bit_length(), 0.0),
             size.seconds)
            for size in sizes
        ]  # fmt: skip
    return [
        (ticks, rows * each_row, 0.0, policy)
        for event in run.occupancies
        for ticks, rows, policy in zip(event.ticks, event.rows, event.spent.get("policy", ()), strict=False)
        if ticks
    ]


def nonnegative_fit(points: Sequence[Point]) -> tuple[float, float, float]:
    """Return the nonnegative x, y, z for which a x + b y + c z is closest to d over all (a, b, c, d).

    Least squares over single ticks: the mean of many is known better than that of few.
    """
    import numpy as np
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    values = np.array(points, dtype=float)
    values /= np.sqrt(values[:, :1])
    found, _ = nnls(values[:, :3], values[:, 3])
    return float(found[0]), float(found[1]), float(found[2])
