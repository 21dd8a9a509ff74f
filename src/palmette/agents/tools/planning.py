"""Plans and reviews: what a run would hold, a config for a goal, and what is wrong with a proposal."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from palmette.agents.checks.find import check_all
from palmette.agents.subject import Subject
from palmette.agents.tools.allowed import checked_config
from palmette.agents.tools.goal import settings_of
from palmette.agents.tools.proposal import read_proposal
from palmette.errors import PalmetteError
from palmette.report.memory_plan import MemoryPlan, plan_config
from palmette.units import format_bytes, one_line
from palmette.yaml_file import parse_override

_MOST_TRIES = 4
_SMALLER_TRAINING: tuple[dict[str, Any], ...] = (
    {"train.method": "lora", "policy.dtype": "bfloat16"},
    {"train.micro_batch_tokens": 2048},
    {"search.total_tokens": 512, "search.step_tokens": 256},
    {"search.width": 4, "train.questions": 8},
)
_SMALLER_SEARCH: tuple[dict[str, Any], ...] = (
    {"policy.dtype": "bfloat16"}, {"search.width": 4}, {"search.total_tokens": 512, "search.step_tokens": 128},
)  # fmt: skip
"""What is changed, one after another, where no setting alone makes a plan fit."""


class Held(BaseModel):
    """What one device holds at its fullest moment."""

    device: str
    phase: str
    peak_bytes: int
    limit_bytes: int | None
    largest: list[str]


class Estimate(BaseModel):
    """A memory plan: whether it fits, what each device holds, and settings that fit, each planned again."""

    fits: bool
    peak: str
    devices: list[Held]
    refusal: str = ""
    suggestions: list[str] = Field(default_factory=list)
    commands: list[str] = Field(default_factory=list, description="start commands of servers, in order")


class Risk(BaseModel):
    """Something in a proposal that breaks a practice or does not fit."""

    id: str
    found: str
    setting: str = ""
    why: str = ""


class Review(BaseModel):
    """A proposal checked: `approved` where no risk was found in what could be read."""

    approved: bool
    approvals: list[str]
    risks: list[Risk]
    plan: Estimate | None = None
    not_read: list[str] = Field(default_factory=list)


class Step(BaseModel):
    """One step of a plan: a command, and what to look at after it."""

    command: str
    check: str


class BuiltPlan(BaseModel):
    """A run for a goal: what was understood, a config that fits, its memory plan, commands, practices to keep."""

    understood: list[str]
    config: str
    changed: list[str] = Field(description="settings that were changed until the plan fitted")
    plan: Estimate
    steps: list[Step]
    practices: list[str]


def estimate_memory(
    root: Path,
    policy: str,
    reward: str | None,
    strategy: str,
    width: int,
    devices: str | None,
    train: bool,
    settings: dict[str, Any],
) -> Estimate:
    """Plan a search or training. Raises ConfigError or BackendError for what cannot be planned."""
    told = {
        "policy.model": policy,
        "reward.model": reward,
        "search.strategy": strategy,
        "search.width": width,
        **settings,
    }
    if devices is not None:
        told["memory.devices"] = devices
    return _estimate(plan_config(checked_config(told, root), train=train))


def build_plan(root: Path, goal: str, constraints: str) -> BuiltPlan:
    """Make a config for a goal, and change it until it fits. Raises ConfigError for what cannot be planned."""
    settings, trains, told = settings_of(f"{goal}\n{constraints}")
    if (
        not trains
        and settings.get("reward.model") is None
        and "search.strategy" not in settings
        and "policy.model" in settings
    ):
        settings["search.strategy"] = "best_of_n"
    changed: list[str] = []
    plan = plan_config(checked_config(settings, root), train=trains)
    for _ in range(_MOST_TRIES):
        setting = next((text for text in plan.suggestions if not text.startswith("devices")), None)
        if plan.fits or setting is None:
            break
        changed.append(setting)
        settings |= _as_settings(setting)
        plan = plan_config(checked_config(settings, root), train=trains)
    for smaller in _SMALLER_TRAINING if trains else _SMALLER_SEARCH:
        if plan.fits:
            break
        changed += [f"{key} {value}" for key, value in smaller.items()]
        settings |= smaller
        plan = plan_config(checked_config(settings, root), train=trains)
    config = checked_config(settings, root)
    verdicts = list(check_all(Subject(config=config, trains=trains)))
    return BuiltPlan(
        understood=told,
        config=_written(settings),
        changed=changed,
        plan=_estimate(plan),
        steps=_steps(trains),
        practices=[f"{one.id}: {one.rule}" for one, verdict in verdicts if not verdict.kept or one.id in settings]
        or [f"{one.id}: {one.rule}" for one, _ in verdicts[:6]],
    )


def review_plan(root: Path, proposal: str, goal: str) -> Review:
    """Check a proposal against all practices, and plan what it would hold."""
    read = read_proposal(proposal, root)
    subject = read.subject
    told = "" if subject.config is not None else goal
    if subject.config is None and (settings := settings_of(f"{proposal}\n{told}")[0]).get("policy.model"):
        subject = _with_config(subject, settings, settings_of(proposal)[1], root)
    verdicts = list(check_all(subject))
    plan = _planned(subject)
    risks = [
        Risk(
            id=one.id, found=one_line(verdict.said, 600), setting=verdict.setting or "", why=f"{one.why} ({one.source})"
        )
        for one, verdict in verdicts
        if not verdict.kept
    ]
    risks += [Risk(id="config", found=fault) for fault in read.faults]
    approvals = [f"{one.id}: {one_line(verdict.said, 200)}" for one, verdict in verdicts if verdict.kept]
    unread = [] if verdicts or risks else ["no config, command, request or code was found in the proposal: paste one"]
    return Review(approved=not risks and not unread, approvals=approvals, risks=risks, plan=plan, not_read=unread)


def _with_config(subject: Subject, settings: dict[str, Any], trains: bool, root: Path) -> Subject:
    try:
        return replace(subject, config=checked_config(settings, root), trains=trains)
    except PalmetteError:
        return subject


def _planned(subject: Subject) -> Estimate | None:
    if subject.config is None or subject.config.policy.is_served:
        return None
    try:
        return _estimate(plan_config(subject.config, train=subject.trains))
    except PalmetteError:
        return None


def _estimate(plan: MemoryPlan) -> Estimate:
    held = []
    for device in plan.devices:
        peak = device.peak
        lines = sorted(peak.lines, key=lambda line: line.needed_bytes, reverse=True)[:5]
        largest = [f"{line.holder} {format_bytes(line.needed_bytes)}" for line in lines]
        held.append(
            Held(
                device=str(device.device),
                phase=peak.name,
                peak_bytes=peak.bytes,
                limit_bytes=peak.limit_bytes,
                largest=largest,
            )
        )
    return Estimate(
        fits=plan.fits,
        peak=format_bytes(plan.peak_bytes),
        devices=held,
        refusal=plan.refusal or "",
        suggestions=list(plan.suggestions),
        commands=[command for server in plan.servers for command in server.commands.values()] if plan.fits else [],
    )


def _as_settings(text: str) -> dict[str, Any]:
    """Return a suggestion of the planner as settings by dotted key."""
    found: dict[str, Any] = {}
    for part in text.split(" with "):
        keys, _, value = part.rpartition(" ")
        for key in keys.split(" and "):
            key = "search.width" if key == "width" else key
            found |= dict([parse_override(f"{key}={value}")])
    return found


def _written(settings: dict[str, Any]) -> str:
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        if name:
            tables.setdefault(table, {})[name] = value
        else:
            tables[table] = value
    return yaml.safe_dump(tables, sort_keys=False)


def _steps(trains: bool) -> list[Step]:
    plan = Step(
        command="palmette plan run.yaml" + (" --train" if trains else ""),
        check="exit code 0: every phase fits its device",
    )
    if not trains:
        return [
            plan,
            Step(
                command="palmette search run.yaml --questions 5 --out runs/first",
                check="answers are not cut; look at a tree in runs/first/report.html",
            ),
            Step(
                command="palmette search run.yaml --questions 200 --out runs/whole",
                check="palmette doctor runs/whole; accuracy with its interval",
            ),
            Step(
                command="palmette sweep run.yaml --widths 4,16 --questions 50",
                check="the row is above best-of-N at the same tokens (BoN)",
            ),
        ]
    return [
        plan,
        Step(
            command="palmette train run.yaml --dry-run",
            check="rewards of the first batch differ within a question; no answer is cut",
        ),
        Step(
            command="palmette train run.yaml --updates 10 --out runs/first",
            check="palmette doctor runs/first: signal, cut share, ratio 1, entropy",
        ),
        Step(
            command="palmette train run.yaml --out runs/whole --set train.eval_every=20",
            check="the tests rise by more than their standard error",
        ),
    ]
