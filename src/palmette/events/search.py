"""Events of a search: what is asked, grown and answered, and what one process did for it."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from palmette.events.values import Amount, Count


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
