"""What a search's work costs, fitted to the seconds that a measured run spent on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from palmette.errors import RunError
from palmette.simulate.work import Recorded


@dataclass(frozen=True)
class Costs:
    """Seconds of a worker's work on one device of its own.

    A tick takes `tick_seconds`, and `row_seconds` for each row and for each token of a prompt that it computes; a step
    that is scored `step_seconds`, with embedding and allocation; a question `question_seconds`, judging among it.
    """

    tick_seconds: float
    row_seconds: float
    step_seconds: float = 0.0
    question_seconds: float = 0.0
    told: str = ""
    """How well they are known, for people."""

    def tick(self, rows: int) -> float:
        """Return the seconds of one tick with so many rows."""
        return self.tick_seconds + self.row_seconds * rows

    def with_ticks(self, measured: int, simulated: int) -> "Costs":
        """Return the same costs with ticks of another length, where a run had fewer or more ticks than simulated.

        A run that drafts tokens has fewer.
        """
        if not measured or not simulated:
            return self
        return replace(self, tick_seconds=self.tick_seconds * measured / simulated)


def fit_costs(run: Recorded) -> Costs:
    """Return what the work of a run cost. Raises RunError where its events do not tell."""
    seconds = sum(session.seconds for session in run.sessions)
    if not run.questions or not seconds:
        raise RunError("the run has no finished question, or no session that ended: there is nothing to simulate from")
    spent: dict[str, float] = {}
    for event in run.occupancies:
        for activity, bins in event.spent.items():
            spent[activity] = spent.get(activity, 0.0) + sum(bins)
    points = tick_points(run)
    policy = spent.get("policy", 0.0) or seconds
    if points:
        # Of many ticks the mean is known better: as least squares over each of them would have it.
        tick, row = nonnegative_fit([tuple(value / math.sqrt(point[0]) for value in point) for point in points])
        scale = policy / sum(tick * ticks + row * rows for ticks, rows, _ in points)
        told = f"fitted to {sum(ticks for ticks, _, _ in points):,.0f} ticks"
    else:
        # Servers do not tell their ticks: the longest step of a wave is the number of its ticks.
        longest = sum(max(wave.steps, default=0) for question in run.questions for wave in question.waves)
        tick, row, scale = policy / max(1, longest), 0.0, 1.0
        told = "the run does not tell its ticks: all are taken to be equal, whatever their rows"
    steps = sum(question.steps for question in run.questions)
    waves = sum(value for activity, value in spent.items() if activity != "policy")
    rest = max(0.0, seconds - policy - waves)
    return Costs(scale * tick, scale * row, waves / max(1, steps), rest / len(run.questions), told)


def tick_points(run: Recorded) -> list[tuple[float, float, float]]:
    """Return (ticks, rows, seconds) of ticks that belong together; a token of a prompt counts as a row.

    They are told by size, or by moment where a run does not tell sizes.
    """
    tokens = sum(question.tokens for question in run.questions)
    each_row = 1 + sum(question.prompt_tokens for question in run.questions) / max(1, tokens)
    sizes = [size for event in run.occupancies for size in event.by_size]
    if sizes:
        return [(size.ticks, size.rows * each_row, size.seconds) for size in sizes]
    return [
        (ticks, rows * each_row, policy)
        for event in run.occupancies
        for ticks, rows, policy in zip(event.ticks, event.rows, event.spent.get("policy", ()), strict=False)
        if ticks
    ]


def nonnegative_fit(points: Sequence[tuple[float, ...]]) -> tuple[float, float]:
    """Return the nonnegative x, y for which a x + b y is closest to c over all (a, b, c), by least squares."""
    aa = sum(a * a for a, _, _ in points)
    bb = sum(b * b for _, b, _ in points)
    ab = sum(a * b for a, b, _ in points)
    ac = sum(a * c for a, _, c in points)
    bc = sum(b * c for _, b, c in points)
    det = aa * bb - ab * ab
    if det > 1e-9 * aa * bb:
        x, y = (ac * bb - bc * ab) / det, (bc * aa - ac * ab) / det
        if x >= 0 and y >= 0:
            return x, y
    only_a, only_b = (ac / aa if aa else 0.0), (bc / bb if bb else 0.0)

    def error(x: float, y: float) -> float:
        return sum((a * x + b * y - c) ** 2 for a, b, c in points)

    return min(((only_a, 0.0), (0.0, only_b)), key=lambda pair: error(*pair))
