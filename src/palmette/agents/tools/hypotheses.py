"""What to try next: by the run that is named, by experiments that were made, by what is known to help."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from palmette.agents.checks.find import check_all
from palmette.agents.doctor.diagnose import diagnose
from palmette.agents.subject import Subject, of_run
from palmette.agents.tools.allowed import inside, may_read
from palmette.errors import ConfigError
from palmette.event_log import FILE_NAME
from palmette.units import one_line


class Hypothesis(BaseModel):
    """Something to try next, with what it should bring and why."""

    try_next: str
    expected: str
    evidence: str


class Hypotheses(BaseModel):
    """What to try next, the most promising first."""

    hypotheses: list[Hypothesis]


def propose_hypothesis(root: Path, current_status: str, recent_experiments: str) -> Hypotheses:
    """Rank what to try next: by the run that is named, by what was tried, by what is generally known to help."""
    named = _named_run(root, current_status)
    found = [
        *(_by_practices(of_run(named, lambda config: may_read(config, root))) if named else ()),
        *_by_table(f"{current_status}\n{recent_experiments}"),
    ]
    found += _by_words(f"{current_status}\n{recent_experiments}")
    unique = {one.try_next: one for one in found}
    return Hypotheses(hypotheses=list(unique.values())[:8])


def _named_run(root: Path, text: str) -> Path | None:
    """Return the run's folder that a text names, if it is below the root."""
    for word in re.findall(r"[\w./-]{2,200}", text[:2000]):
        try:
            folder = inside(root, word.strip("."))
            inside(root, str(folder / FILE_NAME))
        except ConfigError:
            continue
        if (folder / FILE_NAME).is_file():
            return folder
    return None


def _by_practices(subject: Subject) -> Iterator[Hypothesis]:
    for one, verdict in check_all(subject):
        if not verdict.kept:
            yield Hypothesis(
                try_next=verdict.setting or f"keep {one.id}: {one.rule}",
                expected=f"{one.rule} {one.why}",
                evidence=f"{one_line(verdict.said, 300)}. Measured: {one.measured.number} ({one.measured.command})",
            )
    rewards = [numbers["reward"] for numbers in subject.updates if "reward" in numbers]
    if len(rewards) >= 6 and subject.config is not None:
        early, late = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
        rate = subject.config.train.learning_rate
        if late <= early + 0.01:
            yield Hypothesis(
                try_next=f"train.learning_rate {3 * rate:.1g}",
                expected="rewards that move at all",
                evidence=f"reward {early:.3g} in the first three updates, {late:.3g} in the last three",
            )
        else:
            yield Hypothesis(
                try_next=f"train.updates {2 * subject.config.train.updates}",
                expected="more of the same rise",
                evidence=f"reward {early:.3g} in the first three updates, {late:.3g} in the last three",
            )


_PAIR = re.compile(r"([A-Za-z_][\w./-]{0,60})\s*[=:]\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.I)
_RESULTS = ("reward", "accuracy", "acc", "score", "pass", "eval", "test")


def _by_table(text: str) -> Iterator[Hypothesis]:
    """Go on in the direction of the best of several experiments that differ in one number."""
    rows: list[Mapping[str, float]] = []
    for line in text.splitlines()[:500]:
        pairs = {name.lower(): float(number) for name, number in _PAIR.findall(line[:2000])}
        if len(pairs) > 1:
            rows.append(pairs)
    result = next((name for row in rows for name in row if name.startswith(_RESULTS)), None)
    rows = [row for row in rows if result in row]
    if result is None or len(rows) < 2:
        return
    best = max(rows, key=lambda row: row[result])
    for name in best:
        others = sorted({row[name] for row in rows if name in row})
        if name == result or len(others) < 2:
            continue
        told = f"{result} {best[result]:g} with {name} {best[name]:g}, the best of {len(rows)}"
        if best[name] == others[-1]:
            yield Hypothesis(
                try_next=f"{name} {_further(others[-1], others[-2]):.4g}",
                expected=f"a higher {result}: it rose towards this side",
                evidence=told,
            )
        elif best[name] == others[0]:
            yield Hypothesis(
                try_next=f"{name} {_further(others[0], others[1]):.4g}",
                expected=f"a higher {result}: it rose towards this side",
                evidence=told,
            )
        else:
            yield Hypothesis(
                try_next=f"{name} {best[name]:g}, with another seed",
                expected="the same: it lies between two that are worse",
                evidence=told,
            )


def _further(best: float, before: float) -> float:
    return best * best / before if best > 0 and before > 0 else 2 * best - before


def _by_words(text: str) -> Iterator[Hypothesis]:
    found = diagnose(text)
    if found.id is not None and found.advice:
        yield Hypothesis(try_next=found.advice[0], expected=f"an end of: {found.cause}", evidence=found.evidence)
    yield Hypothesis(
        try_next="search.width 16 (num_generations)",
        expected="more questions whose answers differ in reward",
        evidence="TRL's default is 8, DAPO and GSPO publish 16",
    )
    yield Hypothesis(
        try_next="train.clip_high 0.28", expected="entropy that falls more slowly", evidence="DAPO, arXiv 2503.14476"
    )
    yield Hypothesis(
        try_next="search.strategy fixed_tree with train.credit spo",
        expected="advantages for each step instead of each answer",
        evidence="SPO-tree, arXiv 2505.23564: R1-Distill-1.5B on MATH500 at 2K 0.736 against 0.620 with GRPO",
    )
