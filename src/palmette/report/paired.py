"""Two strategies on the same questions: how much less one holds, how the votes differ, with 95% intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from palmette.events import QuestionFinished
from palmette.report.table import plain_table, plain_text

if TYPE_CHECKING:
    import numpy as np

Finished = Mapping[str, QuestionFinished]
"""The questions of a run, by their ids."""

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A number, and the bounds between which it lies in 95 of 100 samples of so many questions."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A strategy beside another: `vote` is its accuracy less the other's, `held` the other's mean KV over its own.

    `vote` is None where no question could be judged.
    """

    questions: int
    vote: Estimate | None
    held: Estimate


def difference(runs: Sequence[tuple[Finished, Finished]], vote: str) -> Difference | None:
    """Compare a strategy with another in pairs of runs, one pair for each seed; None without a question in common."""
    pairs = [(one[name], other[name]) for one, other in runs for name in one if name in other]
    if not pairs:
        return None
    import numpy as np  # Here: reports and the public names are imported without it.

    held = np.array([[event.mean_kv_tokens for event in pair] for pair in pairs])
    judged = [
        [float(outcome == "correct") for outcome in outcomes]
        for pair in pairs
        if None not in (outcomes := [event.choices[vote].outcome for event in pair])
    ]
    gains = np.array([one - other for one, other in judged])
    return Difference(
        len(pairs),
        _estimate(gains.mean(), gains[_samples(len(gains))].mean(axis=1)) if judged else None,
        _estimate(_ratio(held), _ratio(held[_samples(len(held))])),
    )


def _ratio(held: "np.ndarray") -> "np.ndarray":
    """Return the other's sum over one's own; questions are in the second last dimension."""
    sums = held.sum(axis=-2)
    ratio: np.ndarray = sums[..., 1] / sums[..., 0]
    return ratio


def _samples(count: int) -> "np.ndarray":
    """Return places of questions drawn with replacement, the same at every call: a bootstrap."""
    import numpy as np

    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def _estimate(value: "np.ndarray", resampled: "np.ndarray") -> Estimate:
    import numpy as np

    low, high = np.quantile(resampled, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))


def difference_table(differences: Mapping[str, Difference], other: str) -> Table:
    """Return a table of differences, each by the name of its row; `other` names whom they are from."""
    table = plain_table(f"beside {other}", "its KV / this", "95% interval", "vote", "95% interval")
    for name, found in differences.items():
        held, vote = found.held, found.vote
        voted = (f"{vote.value:+.3f}", f"{vote.low:+.3f} to {vote.high:+.3f}") if vote else ("", "")
        table.add_row(plain_text(name), f"{held.value:.2f}", f"{held.low:.2f} to {held.high:.2f}", *voted)
    return table
