"""What the training loop calls and what it has to remember."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from palmette.events import Evaluated, Event
from palmette.search.result import SearchResult
from palmette.tasks.task import Question
from palmette.train.rewards.rewards import Rewards
from palmette.train.rollout.credits import GivesCredit
from palmette.train.rollout.order import QuestionOrder
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult


@dataclass
class Progress:
    """What a training run has to remember beside weights and optimizer state: a checkpoint holds it."""

    update: int = 0
    """Updates done."""
    position: int = 0
    """Questions taken from the order."""
    without_signal: int = 0
    """Updates in a row in which no group had a signal."""
    first_entropy: float | None = None
    """The entropy of the first update."""


@dataclass(frozen=True)
class TrainingParts:
    """What the loop calls, one after the other.

    `roll_out` searches questions with a seed and returns the results in their order, with the newest weights. Where
    `staleness` is above 0 it has those that `publish` has given it last, which is called while no update is under way.
    `reference` returns log-probabilities under the reference policy, None where no KL divergence is asked for; `values`
    what a critic expects before each token, None without one. `compare` corrects samples that a server or older weights
    generated, with statistics; None where there are none. `too_old` returns the questions of the last `roll_out` that
    weights of fewer updates than so many wrote, None where there cannot be any. `learning_rate` returns that of the
    next update, given the number of updates done; `update` makes one optimizer step with it, and its last argument
    tells that the policy has not changed since it generated the samples. With a `staleness` it is called in a thread of
    its own, while this one generates what a coming update learns from: at most so many updates ahead. `phase` meters a
    block under a name and frees unused memory after it.
    """

    order: QuestionOrder
    publish: Callable[[], None] | None
    roll_out: Callable[[Sequence[Question], int], list[SearchResult]]
    rewards: Rewards
    credit: GivesCredit
    reference: Callable[[Sequence[Sample]], list[tuple[float, ...]]] | None
    values: Callable[[Sequence[Sample]], list[tuple[float, ...]]] | None
    compare: Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, float]]] | None
    learning_rate: Callable[[int], float]
    update: Callable[[Sequence[Sample], float, bool], UpdateResult]
    evaluate: Callable[[int], Evaluated]
    checkpoint: Callable[[Progress, float | None], Event]
    phase: Callable[[str], AbstractContextManager[None]]
    peak_bytes: Callable[[], dict[str, int]]
    record: Callable[[Event], None]
    staleness: int = 0
    too_old: Callable[[int], Collection[str]] | None = None
