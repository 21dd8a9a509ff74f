"""Runs: failures diagnosed, folders explained, searches started and watched where that is allowed."""

import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel, Field

from palmette.agents.doctor.diagnose import diagnose
from palmette.agents.doctor.examine import of_run_folder
from palmette.agents.subject import Subject, of_run
from palmette.agents.tools.allowed import checked_config, inside, may_read
from palmette.errors import ConfigError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import Evaluated, QuestionFinished, UpdateDone
from palmette.run.folder import run_config, started_by
from palmette.units import count_of, format_bytes, one_line

_SHOWN = (
    "reward",
    "signal_share",
    "cut_share",
    "entropy",
    "kl",
    "gradient_norm",
    "response_tokens",
    "tokens_per_second",
)


class Found(BaseModel):
    """One finding about a run."""

    about: str
    found: str
    wrong: bool
    advice: list[str] = Field(default_factory=list)
    why: str = ""


class Explanation(BaseModel):
    """A run in words and numbers: what it did, what is wrong with it."""

    summary: str
    numbers: dict[str, list[float]] = Field(description="first and last value of each statistic of training")
    findings: list[Found]


class DiagnosisResult(BaseModel):
    """The likeliest cause of a failure, with the numbers read out of its text and what to do."""

    cause_id: str = Field(description="empty for a failure that is not known")
    cause: str
    evidence: str
    numbers: dict[str, str]
    advice: list[str]
    planned: str = Field(description="a setting that was planned again and fits, where model and device are known")
    practice: str
    other_candidates: list[str]


class Status(BaseModel):
    """How far a run is."""

    run: str
    state: str
    done: int
    total: int | None = None
    last: dict[str, float] = Field(default_factory=dict)


class Started(BaseModel):
    """A search that was started."""

    run: str
    process: int
    log: str


def diagnose_failure(symptoms: str, logs: str) -> DiagnosisResult:
    """Return the cause that the log and what is said about it tell, the most specific one."""
    found = diagnose(f"{symptoms}\n{logs}")
    return DiagnosisResult(
        cause_id=found.id or "",
        cause=found.cause,
        evidence=found.evidence,
        numbers=dict(found.numbers),
        advice=list(found.advice),
        planned=found.planned or "",
        practice=found.practice or "",
        other_candidates=list(found.others),
    )


def explain_run(root: Path, run: str) -> Explanation:
    """Return what a run's folder holds. Raises ConfigError for a path outside the root, RunError for a damaged run."""
    folder = run_folder(root, run)
    subject = of_run(folder, lambda config: may_read(config, root))
    found = sorted(of_run_folder(folder, subject), key=lambda finding: not finding.is_wrong)
    findings = [
        Found(about=one.about, found=one_line(one.found, 600), wrong=one.is_wrong, advice=list(one.advice), why=one.why)
        for one in found
    ]
    wrong = sum(one.wrong for one in findings)
    return Explanation(
        summary=f"{_summary(subject)}; {wrong} wrong, {len(findings) - wrong} right",
        numbers=_ends(subject),
        findings=findings,
    )


def run_status(root: Path, run: str) -> Status:
    """Return how far a run is, by its events."""
    folder = run_folder(root, run)
    config, trains = run_config(folder, imports=False), started_by(folder) == "train"
    finished, update, last = set(), 0, {}
    for event in read_events(folder):
        if isinstance(event, QuestionFinished):
            finished.add(event.question)
        elif isinstance(event, UpdateDone):
            update, last = event.update, {key: event.numbers[key] for key in _SHOWN if key in event.numbers}
        elif isinstance(event, Evaluated):
            last = {**last, "test accuracy": event.single}
    done, total = (update, config.train.updates) if trains else (len(finished), config.task.questions)
    state = "finished" if done >= total else "running or stopped"
    return Status(run=one_line(run, 200), state=state, done=done, total=total, last=last)


def start_search(root: Path, out: str, policy: str, strategy: str, width: int, task: str, questions: int) -> Started:
    """Start a search as a process of its own. Raises ConfigError for what may not be named."""
    folder = inside(root, out)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{one_line(out, 120)} is not empty: choose a new folder")
    checked_config(
        {
            "policy.model": policy,
            "search.strategy": strategy,
            "search.width": width,
            "task.name": task,
            "task.questions": questions,
        },
        root,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    flags = {
        "--policy": policy,
        "--strategy": strategy,
        "--width": str(width),
        "--task": task,
        "--questions": str(questions),
        "--out": str(folder),
    }
    words = [sys.executable, "-m", "palmette", "search", *(word for pair in flags.items() for word in pair)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=root, start_new_session=True
        )
    return Started(
        run=str(folder.relative_to(root.resolve())), process=process.pid, log=str(log.relative_to(root.resolve()))
    )


def run_folder(root: Path, run: str) -> Path:
    """Return the folder of a run below the root; raise ConfigError for anything else."""
    folder = inside(root, run)
    inside(root, str(folder / FILE_NAME))  # A link may lead elsewhere.
    if not (folder / FILE_NAME).is_file():
        raise ConfigError(f"{one_line(run, 120)} is no folder of a run below the root: there is no {FILE_NAME} in it")
    return folder


def _summary(subject: Subject) -> str:
    config = subject.config
    if config is None:
        return "a run whose config names code or models that are not read from here"
    what = f"{config.search.strategy} at width {config.search.width} with {config.policy.model}"
    if subject.trains:
        return f"training by {config.train.algorithm}, {what}: {count_of(len(subject.updates), 'update')}"
    peak = max((phase.peak_bytes for phase in subject.peaks), default=0)
    return f"search, {what}: {count_of(len(subject.questions), 'question')} finished, at most {format_bytes(peak)} held"


def _ends(subject: Subject) -> dict[str, list[float]]:
    found = {key: [numbers[key] for numbers in subject.updates if key in numbers] for key in _SHOWN}
    return {key: [values[0], values[-1]] for key, values in found.items() if values}
