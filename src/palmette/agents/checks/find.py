"""Runs the checks of practices: all that have something to say about a subject, or one."""

from collections.abc import Callable, Iterator
from types import ModuleType

from palmette.agents.checks import code, memory, runs, servers, training
from palmette.agents.checks.verdict import Verdict
from palmette.agents.subject import Subject
from palmette.practices.find import practices
from palmette.practices.practice import Practice

Check = Callable[..., Verdict | None]
"""Takes a subject and what the practice's file gives beside the name; None where there is nothing to check."""


def _checks_of(module: ModuleType) -> dict[str, Check]:
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if getattr(value, "__module__", "") == module.__name__}


CHECKS: dict[str, Check] = {}
for _module in (code, memory, runs, servers, training):
    CHECKS |= _checks_of(_module)


def check(practice: Practice, subject: Subject) -> Verdict | None:
    """Return what the practice's check finds; None where the subject has nothing that the practice is about."""
    return CHECKS[practice.check.name](subject, **practice.check.arguments)


def check_all(subject: Subject) -> Iterator[tuple[Practice, Verdict]]:
    """Yield every practice that is about something in the subject, with its verdict."""
    for practice in practices().values():
        verdict = check(practice, subject)
        if verdict is not None:
            yield practice, verdict
