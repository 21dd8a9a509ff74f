"""What happened in a run, as typed records in one JSONL file."""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from palmette.errors import RunError

FILE_NAME = "events.jsonl"
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
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    cls.kind: TypeAdapter(with_config(ConfigDict(allow_inf_nan=False))(cls))
    for cls in (RunStarted, QuestionStarted, WaveDone, QuestionFinished, Session, OomRetry, Reclaimed, MemoryTimeline)
}
_RENAMED = {"rung": "oom_retry"}
"""Kinds of events that earlier versions wrote under another name."""


@dataclass
class EventLog:
    """Appends events to a run's file; each line reaches the operating system whole before the next begins.

    One process at a time: a second writer gets a RunError. A half-written last line, left by a kill, is cut off.
    """

    folder: Path
    _file: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        path = self.folder / FILE_NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise RunError(
                f"{self.folder} is being written by another process; wait for it or choose another --out"
            ) from None
        self._cut_half_line()

    def write(self, event: Event) -> None:
        """Append one event."""
        line = json.dumps({"kind": event.kind, **asdict(event)}, separators=(",", ":"), allow_nan=False)
        data = memoryview(line.encode("utf-8") + b"\n")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            # Without the half line: a later event would be glued to it.
            self._cut_half_line()
            raise RunError(
                f"cannot write {self.folder / FILE_NAME}: {error.strerror}. Finished questions are kept: "
                f"make room, then palmette search --resume {self.folder}"
            ) from error

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing has been written yet, by any process."""
        return os.fstat(self._file).st_size == 0

    def close(self) -> None:
        """Flush to disk and let other processes in."""
        try:
            os.fsync(self._file)
        except OSError:
            pass  # A pipe or a full disk: what could be written has been written.
        os.close(self._file)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut_half_line(self) -> None:
        size = os.fstat(self._file).st_size
        end, block = size, 1 << 16
        while end > 0:
            start = max(0, end - block)
            cut = os.pread(self._file, end - start, start).rfind(b"\n")
            if cut >= 0:
                end = start + cut + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)


def read_events(folder: Path) -> Iterator[Event]:
    """Yield a run's events in order. A half-written last line is dropped; other damage is a RunError with its line."""
    path = folder / FILE_NAME
    if path.exists() and not path.is_file():
        raise RunError(f"{folder} is no run folder: {path} is no regular file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunError(
            f"{folder} is no run folder: cannot read {path}: {error.strerror}. A run that was stopped while its models "
            f"loaded has nothing to resume: start it again"
        ) from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield _decode(line, f"{path}, line {number}")


def _decode(line: bytes, place: str) -> Event:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{place}: damaged, not JSON ({error})") from None
    kind = values.pop("kind", None) if isinstance(values, dict) else None
    kind = _RENAMED.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in _ADAPTERS:
        raise RunError(f"{place}: damaged, no event of a known kind")
    try:
        event: Event = _ADAPTERS[kind].validate_python(values)
    except ValidationError as error:
        item = error.errors()[0]
        where = ".".join(str(part) for part in item["loc"])
        raise RunError(f"{place}: damaged {kind} event: {where}: {item['msg']}") from None
    return event
