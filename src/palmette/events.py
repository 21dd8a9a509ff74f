"""The events of a run as typed records; their fields are the JSON keys of the file."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Signed = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
"""Seconds and means. Larger ones, like larger counts, are damage: sums of them overflow."""


@dataclass(frozen=True)
class RunStarted:
    """First event of a run: the complete config, and the version of palmette that wrote it.

    `run` tells a training run from every other one, for its checkpoints; others and earlier versions have none.
    """

    kind: ClassVar[str] = "run_started"
    version: str
    config: dict[str, Any]
    run: str = ""


@dataclass(frozen=True)
class QuestionStarted:
    """The search of a question starts. A second one for the same question replaces everything recorded for the first.

    `prompt` is the text of the last message, `prompt_tokens` the number of tokens of the whole prompt, `digest` the
    hash of the question. Runs of earlier versions have no `prompt_token_ids`.
    """

    kind: ClassVar[str] = "question_started"
    question: str
    prompt: str
    reference: str | None
    prompt_tokens: Count
    digest: str
    prompt_token_ids: tuple[Count, ...] = ()


@dataclass(frozen=True)
class NodeRecord:
    """One step: its node in the tree, its tokens with log-probabilities, and its score, None without a scorer."""

    id: Count
    parent: Count
    tokens: tuple[Count, ...]
    text: str
    logprobs: tuple[float, ...]
    finished: bool
    score: Annotated[float, Field(ge=0, le=1)] | None


@dataclass(frozen=True)
class WaveDone:
    """One wave of one question: the steps added, and the children granted for the next wave by id of their parent.

    `kv_tokens` are the KV tokens that the cache holds for the added steps, every distinct prefix of their paths once,
    `separate_kv_tokens` with the whole path of each counted (see `Tree.kv_counts`). Runs of earlier versions have
    `kv_as_held` False: they counted every node, also one that equals a sibling. `event_log` counts these again when it
    reads them.

    `clusters` maps open leaves to cluster labels, which start from 0 in every wave; empty if the strategy does not
    cluster. `logprobs` of the steps are those at sampling temperature `temperature`.
    """

    kind: ClassVar[str] = "wave_done"
    question: str
    wave: Count
    nodes: tuple[NodeRecord, ...]
    children: dict[Count, Count]
    kv_tokens: Count
    separate_kv_tokens: Count
    clusters: dict[Count, Count] = field(default_factory=dict)
    temperature: Amount = 1.0
    kv_as_held: bool = False


@dataclass(frozen=True)
class Chosen:
    """The answer that one vote elects and its outcome. Both can be None: no answer, no verdict."""

    answer: str | None
    outcome: str | None


@dataclass(frozen=True)
class JudgedLeaf:
    """The judge's verdict on one leaf that was not pruned.

    `answer` is None if the solution has no answer, `outcome` and `reward` are None if it could not be judged.
    """

    leaf: Count
    answer: str | None
    outcome: str | None
    reward: float | None


@dataclass(frozen=True)
class QuestionFinished:
    """The search of a question ended: the choice of every vote, and the verdict on every leaf that was not pruned.

    `leaf_outcomes` counts the outcomes of these leaves; runs of earlier versions have only this and no `leaves`.
    `mean_kv_tokens`, `peak_kv_tokens` and `peak_separate_kv_tokens` are over the waves, `kv_as_held` as there (see
    WaveDone). `out_of_room` is True if the search ended because the tree had filled its share of the KV budget.
    """

    kind: ClassVar[str] = "question_finished"
    question: str
    choices: dict[str, Chosen]
    leaf_outcomes: dict[str, Count]
    generated_tokens: Count
    mean_kv_tokens: Amount
    peak_kv_tokens: Count
    peak_separate_kv_tokens: Count
    waves: Count
    out_of_room: bool = False
    leaves: tuple[JudgedLeaf, ...] = ()
    kv_as_held: bool = False


@dataclass(frozen=True)
class ServerUse:
    """What one server did with its KV cache during a session; None stands for what it does not publish.

    `prefix_tokens` of prompts were looked up in its prefix cache, `prefix_hits` of them found there. A server of vLLM
    that others ask at the same time counts their prompts too.
    """

    address: str
    kv_tokens: Count | None = None
    prefix_tokens: Count | None = None
    prefix_hits: Count | None = None
    preemptions: Count | None = None


@dataclass(frozen=True)
class Session:
    """What one process did for the run: seconds of search, model calls, questions finished.

    `peak_kv_tokens` is the largest sum over the trees in flight, each with what the cache holds for it after its last
    whole wave. Runs of earlier versions have `kv_as_held` False: this one cannot be counted again.
    `driver_seconds` are the processor seconds that the driver of workers took for itself.
    """

    kind: ClassVar[str] = "session"
    seconds: Amount
    policy_calls: Count
    reward_calls: Count
    questions: Count
    kv_bytes_per_token: Count
    peak_kv_tokens: Count = 0
    kv_as_held: bool = False
    servers: tuple[ServerUse, ...] = ()
    driver_seconds: Amount = 0.0


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
class OomRetry:
    """An out-of-memory retry: a piece of `tried` units failed, the next ones have at most `limit` units.

    `limit` None means that all sizes are tried again, because caches were freed first (`spared`); with `limit` None and
    not `spared` nothing was left to try, and the work failed. `moment` is the time in seconds since the meter of the
    process started, which was at `began` (seconds since 1970).
    """

    kind: ClassVar[str] = "oom_retry"
    guard: str
    unit: str
    tried: Count
    limit: Count | None
    reason: str
    freed_bytes: Signed
    free_bytes_before: Count
    free_bytes_after: Count
    held_bytes: Count
    spared: bool = False
    began: Amount = 0.0
    moment: Amount = 0.0
    worker: str = ""


@dataclass(frozen=True)
class Reclaimed:
    """Unused memory was freed, between two phases or after a piece that did not fit (`after`).

    `freed_bytes` is what each attempt really freed, `held_bytes` what the process held afterwards. `began` and `moment`
    as in OomRetry.
    """

    kind: ClassVar[str] = "reclaimed"
    after: str
    freed_bytes: tuple[Signed, ...]
    held_bytes: Count
    seconds: Amount
    began: Amount = 0.0
    moment: Amount = 0.0
    worker: str = ""


@dataclass(frozen=True)
class PhasePeak:
    """All runs of one phase: how many, seconds in total, the most bytes held in any, the bytes planned."""

    name: str
    times: Count
    seconds: Amount
    peak_bytes: Count
    planned_bytes: Count | None = None


@dataclass(frozen=True)
class MemoryTimeline:
    """The memory that one process held on a device over time.

    A later event with the same `began`, `device` and `worker` replaces this one.

    `moments` (seconds since `began`), `held_bytes` and `places` have one entry for each sample; a place is an index
    into `phases`, None outside of all phases. `used_bytes` is the allocator's own count at the end, None if it has
    none.
    """

    kind: ClassVar[str] = "memory_timeline"
    device: str
    began: Amount
    total_bytes: Count
    moments: tuple[Amount, ...]
    held_bytes: tuple[Count, ...]
    places: tuple[Count | None, ...]
    phases: tuple[PhasePeak, ...]
    limit_bytes: Count | None = None
    used_bytes: Count | None = None
    worker: str = ""


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


Event = (
    RunStarted
    | QuestionStarted
    | WaveDone
    | QuestionFinished
    | Session
    | Occupancy
    | OomRetry
    | Reclaimed
    | MemoryTimeline
    | QuestionTimed
    | WorkerEnded
    | UpdateDone
    | Evaluated
    | RowsTested
    | Noticed
    | CheckpointWritten
)
