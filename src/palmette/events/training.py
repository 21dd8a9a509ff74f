"""Events of training: updates with samples to read, tests, notices, checkpoints."""

from dataclasses import dataclass, field
from typing import ClassVar

from palmette.events.values import Amount, Count


@dataclass(frozen=True)
class ShownSample:
    """One response of an update for people to read: its prompt and text, reward and advantage.

    `advantage` is the mean over its tokens, None for a response that was left out. `parts` has the rewards by name,
    `logged` what reward functions logged of it.
    """

    question: str
    prompt: str
    text: str
    reward: float | None
    advantage: float | None
    is_cut: bool
    parts: dict[str, float | None] = field(default_factory=dict)
    logged: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShownStep:
    """One branch of a tree of an update for people to read: a step with those that follow it without an alternative.

    `parent` is the place of the branch above it, counted from 1, or 0 for the prompt. `state` is that of its last step.
    `value` is what the leaves below it reached, None for a pruned branch; `reward` is that of a leaf. `advantage` is
    None where nothing is learned from it.
    """

    parent: Count
    text: str
    tokens: Count
    state: str
    value: float | None
    advantage: float | None
    reward: float | None


@dataclass(frozen=True)
class ShownTree:
    """The first branches of a question's tree, in the order in which they grew, and how many others it has."""

    question: str
    steps: tuple[ShownStep, ...]
    left_out: Count = 0


@dataclass(frozen=True)
class UpdateDone:
    """One update of a training run; a later event with the same `update` replaces this one.

    `numbers` are statistics by name (docs/training.md), `seconds` and `peak_bytes` those of each phase, `position` how
    many questions were asked since the run began.
    """

    kind: ClassVar[str] = "update_done"
    update: Count
    position: Count
    numbers: dict[str, float]
    seconds: dict[str, Amount]
    peak_bytes: dict[str, Count]
    samples: tuple[ShownSample, ...] = ()
    trees: tuple[ShownTree, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """An evaluation on the test questions after so many updates.

    `single` is the share of correct responses, `elected` that of questions whose elected answer is correct, `error` the
    standard error of `single` over questions.
    """

    kind: ClassVar[str] = "evaluated"
    update: Count
    questions: Count
    single: float
    elected: float
    error: Amount
    tokens: Count
    seconds: Amount


@dataclass(frozen=True)
class RowsTested:
    """A test on rows that were held out of training, after so many updates: statistics by name, such as `loss`."""

    kind: ClassVar[str] = "rows_tested"
    update: Count
    rows: Count
    numbers: dict[str, float]
    seconds: Amount


@dataclass(frozen=True)
class Noticed:
    """Something about a training run that its user should know, after so many updates."""

    kind: ClassVar[str] = "noticed"
    update: Count
    about: str
    text: str


@dataclass(frozen=True)
class CheckpointWritten:
    """A checkpoint was written after so many updates, in this folder below the run's."""

    kind: ClassVar[str] = "checkpoint_written"
    update: Count
    folder: str
    size_bytes: Count
    seconds: Amount
