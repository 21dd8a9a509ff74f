"""What practices are checked against: a config, commands, requests, code, or what a run recorded."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palmette import registry
from palmette.config import load_config
from palmette.event_log import read_events
from palmette.events import MemoryTimeline, OomRetry, PhasePeak, QuestionFinished, UpdateDone
from palmette.practices.practice import Example
from palmette.run.folder import run_config, started_by
from palmette.settings import Config


@dataclass(frozen=True)
class Command:
    """A line of a shell: variables set before it, its words, and its flags by name without dashes."""

    environment: Mapping[str, str]
    words: tuple[str, ...]
    flags: Mapping[str, str]

    @property
    def server(self) -> str | None:
        """The engine that the command starts, if it starts one."""
        line = " ".join(self.words)
        return "sglang" if "sglang" in line and "launch_server" in line else "vllm" if "vllm" in line else None


@dataclass(frozen=True)
class Subject:
    """What is known of a plan or a run; empty where nothing is."""

    config: Config | None = None
    trains: bool = False
    foreign: Mapping[str, Any] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    requests: tuple[Mapping[str, Any], ...] = ()
    code: str = ""
    updates: tuple[Mapping[str, float], ...] = ()
    questions: tuple[Mapping[str, Any], ...] = ()
    peaks: tuple[PhasePeak, ...] = ()
    retries: tuple[OomRetry, ...] = ()

    @property
    def training(self) -> Config | None:
        """The config, if it is one of training."""
        return self.config if self.trains else None


def of_example(example: Example) -> Subject:
    """Return the subject that an example describes. Raises ConfigError for a config that is none."""
    peaks = tuple(PhasePeak(times=1, seconds=0.0, **peak) for peak in example.peaks)
    return Subject(
        config=None if example.config is None else load_config(None, example.config, given_by="example"),
        trains=example.trains,
        foreign=flat(example.foreign),
        commands=tuple(parsed_command(line) for line in example.commands),
        requests=() if example.request is None else (example.request,),
        code=example.code,
        updates=tuple(example.updates),
        questions=tuple(example.questions),
        peaks=peaks,
    )


def of_run(folder: Path, may_read: Callable[[Config], bool] = lambda config: True) -> Subject:
    """Return what a run's folder holds. Raises RunError, ConfigError.

    A config that names code of one's own is left out, since checking it would import that code; and so is one that
    the caller may not read.
    """
    recorded = run_config(folder, imports=False)
    config = None if _names_code(recorded) or not may_read(recorded) else recorded
    updates: dict[int, Mapping[str, float]] = {}
    questions: dict[str, Mapping[str, Any]] = {}
    timelines: dict[tuple[str, float], MemoryTimeline] = {}
    retries: list[OomRetry] = []
    for event in read_events(folder):
        if isinstance(event, UpdateDone):
            updates[event.update] = event.numbers
        elif isinstance(event, QuestionFinished):
            questions[event.question] = {"out_of_room": event.out_of_room, "waves": event.waves}
        elif isinstance(event, MemoryTimeline):
            timelines[event.worker, event.began] = event
        elif isinstance(event, OomRetry):
            retries.append(event)
    return Subject(
        config=config,
        trains=started_by(folder) == "train",
        updates=tuple(updates[number] for number in sorted(updates)),
        questions=tuple(questions.values()),
        peaks=tuple(phase for timeline in timelines.values() for phase in timeline.phases),
        retries=tuple(retries),
    )


def _names_code(config: Config) -> bool:
    train, search = config.train, config.search
    parts = (
        config.policy.model,
        config.policy.backend,
        config.reward.model,
        config.reward.score,
        config.embedder.model,
    )
    named = (
        *parts,
        config.task.name,
        config.task.judge,
        search.strategy,
        train.algorithm,
        train.credit,
        train.eval_strategy,
    )
    return any(registry.is_reference(name) for name in (*named, *train.rewards) if name is not None)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def parsed_command(line: str) -> Command:
    """Return a line of a shell as a Command. Nothing is expanded; a line that cannot be split is split at spaces."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    environment: dict[str, str] = {}
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    flags: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = words[place + 1] if place + 1 < len(words) else ""
            flags[name.replace("_", "-")] = value if equals else "" if after.startswith("--") else after
    return Command(environment, tuple(words), flags)
