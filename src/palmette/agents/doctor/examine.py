"""Examines the folder of a run, a log, a config or this machine: says what is wrong and what helps."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from palmette.agents.checks.find import check_all
from palmette.agents.doctor.diagnose import Diagnosis, diagnose
from palmette.agents.doctor.machine import machine_facts
from palmette.agents.subject import Subject, of_run
from palmette.config import load_config
from palmette.errors import ConfigError, PalmetteError
from palmette.event_log import FILE_NAME
from palmette.units import count_of, format_bytes, one_line

_MOST_LOG_BYTES = 8 * 2**20
_CONFIGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or that was looked at and is right: what was found, what helps, and why."""

    about: str
    found: str
    is_wrong: bool
    advice: tuple[str, ...] = ()
    why: str = ""


def examine(path: Path | None) -> list[Finding]:
    """Return what is found, what is wrong first. Raises ConfigError for a path that is none of what can be read."""
    if path is None:
        facts = machine_facts()
        return [Finding(fact.name, fact.value, fact.wrong is not None, _advice(fact.wrong)) for fact in facts]
    if path.is_dir():
        findings = list(of_run_folder(path, _subject_of(path)))
    elif path.suffix in _CONFIGS:
        findings = list(_config(path))
    elif path.is_file():
        findings = [of_diagnosis(diagnose(read_log(path)))]
    else:
        raise ConfigError(f"{one_line(str(path), 200)}: no folder of a run, no log and no config")
    return sorted(findings, key=lambda finding: not finding.is_wrong)


def read_log(path: Path) -> str:
    """Return the end of a text file, at most 8 MiB; bytes that are no UTF-8 are replaced."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MOST_LOG_BYTES))
            return file.read(_MOST_LOG_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{one_line(str(path), 200)}: cannot be read: {error.strerror}") from error


def of_diagnosis(found: Diagnosis) -> Finding:
    """Return a diagnosis as a finding."""
    if found.id is None:
        shown = f"no known failure. The last error: {found.evidence}" if found.evidence else "no known failure in it"
        return Finding("log", shown, bool(found.evidence))
    advice = (*found.advice, *((f"planned again: {found.planned}",) if found.planned else ()))
    return Finding(found.id, found.cause, True, advice, f"the line: {found.evidence}")


def of_subject(subject: Subject) -> Iterator[Finding]:
    """Yield what the practices find about a subject."""
    for practice, verdict in check_all(subject):
        advice = _advice(verdict.setting)
        why = (
            "" if verdict.kept else f"{practice.why} Measured: {practice.measured.number} ({practice.measured.command})"
        )
        yield Finding(practice.id, verdict.said, not verdict.kept, advice, why)


def _advice(text: str | None) -> tuple[str, ...]:
    return () if text is None else (text,)


def _subject_of(folder: Path) -> Subject:
    if not (folder / FILE_NAME).is_file():
        raise ConfigError(f"{one_line(str(folder), 200)}: no run, there is no {FILE_NAME} in it")
    return of_run(folder)


def of_run_folder(folder: Path, subject: Subject) -> Iterator[Finding]:
    """Yield what is found about a run: by practices, by its out-of-memory retries, by logs beside its events."""
    yield from of_subject(subject)
    if subject.retries:
        last = subject.retries[-1]
        held, count = format_bytes(last.held_bytes), count_of(len(subject.retries), "retry", "retries")
        yield Finding(
            "out-of-memory retries",
            f"{count}, the last in {last.guard}: {last.tried} {last.unit}s did not fit beside {held}",
            last.limit is None and not last.spared,
            (f"begin with pieces of {last.limit} {last.unit}s",) if last.limit else (),
        )
    for log in sorted(path for path in folder.glob("*.log") if not path.is_symlink()):
        diagnosis = diagnose(read_log(log))
        if diagnosis.id is not None:
            yield of_diagnosis(diagnosis)


def _config(path: Path) -> Iterator[Finding]:
    try:
        config = load_config(path)
    except PalmetteError as error:
        yield Finding("config", str(error), True)
        return
    trains = "train" in config.model_fields_set
    yield Finding("config", f"read as a config of {'training' if trains else 'a search'}", False)
    yield from of_subject(Subject(config=config, trains=trains))
