"""What happened in a run, as typed records in one JSONL file."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class RunStarted:
    """First event of a run: the effective config and the version that wrote it."""

    kind: ClassVar[str] = "run_started"
    version: str
    config: dict[str, Any]


@dataclass(frozen=True)
class QuestionStarted:
    """A question's tree begins. A second one for the same question voids what the first had recorded."""

    kind: ClassVar[str] = "question_started"
    question: str
    prompt: str
    reference: str | None
    prompt_tokens: Annotated[int, Field(ge=0, le=10**8)]
    digest: str
    prompt_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeRecord:
    """One step as it was generated and scored."""

    id: int
    parent: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finished: bool
    score: Annotated[float, Field(ge=0, le=1)] | None


@dataclass(frozen=True)
class WaveDone:
    """One wave of one question: the steps it added, the children granted next, the KV tokens held at its end.

    `clusters` labels those of its open leaves that a strategy grouped by what they say; labels count from 0 each wave.
    The steps' log-probabilities are at `temperature`.
    """

    kind: ClassVar[str] = "wave_done"
    question: str
    wave: int
    nodes: tuple[NodeRecord, ...]
    children: dict[int, int]
    kv_tokens: int
    separate_kv_tokens: int
    clusters: dict[int, int] = field(default_factory=dict)
    temperature: float = 1.0


@dataclass(frozen=True)
class Chosen:
    """What one way of voting answers, and whether that is right; None where nobody can tell."""

    answer: str | None
    outcome: str | None


@dataclass(frozen=True)
class JudgedLeaf:
    """One leaf that was not pruned: the answer it gives, the judge's verdict on it, and its reward.

    The answer is None where it holds none; outcome and reward are None where nobody can tell.
    """

    leaf: Count
    answer: str | None
    outcome: str | None
    reward: float | None


@dataclass(frozen=True)
class QuestionFinished:
    """A question is answered: one choice for each way of voting, and the verdict on every leaf that was not pruned.

    `leaf_outcomes` counts these verdicts; it is all that runs of earlier versions have.
    """

    kind: ClassVar[str] = "question_finished"
    question: str
    choices: dict[str, Chosen]
    leaf_outcomes: dict[str, Count]
    generated_tokens: int
    mean_kv_tokens: float
    peak_kv_tokens: int
    peak_separate_kv_tokens: int
    waves: int
    out_of_room: bool = False
    leaves: tuple[JudgedLeaf, ...] = ()


@dataclass(frozen=True)
class Session:
    """One process worked on the run: seconds it searched, model calls it made, what a KV token weighs.

    `peak_kv_tokens` is what all trees in flight held together at the most.
    """

    kind: ClassVar[str] = "session"
    seconds: float
    policy_calls: int
    reward_calls: int
    questions: int
    kv_bytes_per_token: int
    peak_kv_tokens: Count = 0


@dataclass(frozen=True)
class OomRetry:
    """Work ran out of memory and was retried smaller: `tried` units, then at most `limit`, None for any size again.

    With `spared` caches that can be computed again were given up first. A last one without either ended the work.
    `moment` is seconds since the meter of its process began, which was at `began` (seconds since 1970).
    """

    kind: ClassVar[str] = "oom_retry"
    guard: str
    unit: str
    tried: Count
    limit: Count | None
    reason: str
    freed_bytes: int
    free_bytes_before: Count
    free_bytes_after: Count
    held_bytes: Count
    spared: bool = False
    began: float = 0.0
    moment: float = 0.0


@dataclass(frozen=True)
class Reclaimed:
    """Memory was given back between two phases, or after a piece that did not fit: what each try really freed."""

    kind: ClassVar[str] = "reclaimed"
    after: str
    freed_bytes: tuple[int, ...]
    held_bytes: Count
    seconds: float
    began: float = 0.0
    moment: float = 0.0


@dataclass(frozen=True)
class PhasePeak:
    """One kind of phase: how often it ran, its seconds in all, the most bytes held in it, and those planned for it."""

    name: str
    times: Count
    seconds: float
    peak_bytes: Count
    planned_bytes: Count | None = None


@dataclass(frozen=True)
class MemoryTimeline:
    """What one process has held since its meter began; a later one with the same `began` takes its place.

    `moments`, `held_bytes` and `places` belong together; a place is one of `phases`, None for none of them.
    `used_bytes` is the allocator's own count at the end, None where it tells nothing.
    """

    kind: ClassVar[str] = "memory_timeline"
    device: str
    began: float
    total_bytes: Count
    moments: tuple[float, ...]
    held_bytes: tuple[Count, ...]
    places: tuple[Count | None, ...]
    phases: tuple[PhasePeak, ...]
    limit_bytes: Count | None = None
    used_bytes: Count | None = None


Event = RunStarted | QuestionStarted | WaveDone | QuestionFinished | Session | OomRetry | Reclaimed | MemoryTimeline
