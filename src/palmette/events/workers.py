"""Events of those who search: what each process did over time, which workers ended and why."""

from dataclasses import dataclass
from typing import ClassVar

from palmette.events.values import Amount, Count


@dataclass(frozen=True)
class TicksOfSize:
    """Ticks of similar size: how many, the rows that they had together, and the policy's seconds up to each of them."""

    ticks: Count
    rows: Count
    seconds: Amount


@dataclass(frozen=True)
class Occupancy:
    """What the search of one process did over time, in bins of `bin_seconds` from `began` (seconds since 1970) on.

    `ticks` counts the policy's forward passes that sampled tokens, `rows` the tokens that they sampled, one for each
    row; both are 0 for a backend that does not tell them. `spent` has the seconds of each activity: policy, reward,
    embedder, strategy; what is left of a bin went into the rest of the loop and the judge. `worker` is the name of the
    worker, empty for the process that wrote the file; so it is in the events of memory. `by_size` has the ticks once
    more, by how many rows they had: 1, 2 to 3, 4 to 7 and so on.
    """

    kind: ClassVar[str] = "occupancy"
    began: Amount
    bin_seconds: Amount
    ticks: tuple[Count, ...]
    rows: tuple[Count, ...]
    spent: dict[str, tuple[Amount, ...]]
    worker: str = ""
    by_size: tuple[TicksOfSize, ...] = ()


@dataclass(frozen=True)
class QuestionTimed:
    """A worker finished a question: `seconds` from its start to its verdicts by the worker's own clock.

    `began` is when it started, in seconds since the driver began; several questions of one worker overlap.
    """

    kind: ClassVar[str] = "question_timed"
    question: str
    seconds: Amount
    tokens: Count
    began: Amount = 0.0
    worker: str = ""


@dataclass(frozen=True)
class WorkerEnded:
    """A worker ended: what it did, the most bytes it was seen to hold, and why it was lost (`lost`, else empty).

    `seconds` are those from when its models were loaded, 0 for one that never came so far; `node` is its machine.
    """

    kind: ClassVar[str] = "worker_ended"
    worker: str
    node: str
    questions: Count
    tokens: Count
    seconds: Amount
    peak_bytes: Count
    lost: str = ""
