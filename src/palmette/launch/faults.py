"""Why a server did not start, read from what it wrote: one line, with the setting to change where that is known."""

import re
import signal
from pathlib import Path

from palmette.errors import BackendError, BudgetError, PalmetteError
from palmette.launch.command import ServerCommand
from palmette.units import one_line

_LAST_LINES = 3
_SHOWN_CHARACTERS = 600
_SMALLER = "lower search.width or search.total_tokens, take a smaller model, or end what else holds memory there"

_TOO_LOW = (
    r"Raise --mem-fraction-static above ([\d.]+)",
    r"Please try to increase --mem-fraction-static",
    r"No available memory for the cache blocks",
    r"larger than the available KV cache memory",
)
"""The memory that a server was given does not hold its weights and the KV of one sequence."""

_TOO_MUCH = (
    r"Free memory on device .* is less than desired GPU memory utilization",
    r"is less than requested memory for kv",
    r"out of memory",
    r"OutOfMemoryError",
    r"\bMemoryError\b",
    r"can't allocate memory",
)
_PORT = (r"address already in use", r"Errno 98")


def start_fault(command: ServerCommand, said: str, code: int, log: Path) -> PalmetteError:
    """Return the error for a server that has ended with this code while it started; `said` is what it wrote."""
    who = f"the {command.role} server ({command.engine} at {command.address})"
    where = f"its output is in {log}"
    if low := _found(_TOO_LOW, said):
        least = f", it needs more than {low[1]}" if low.re.groups and low[1] else ""
        return BudgetError(
            f"{who} got too little memory for its weights and KV on {command.device}{least}: {_SMALLER}; {where}"
        )
    if _found(_TOO_MUCH, said) or code == -signal.SIGKILL:
        why = (
            "was ended by the system, as happens for lack of memory" if code == -signal.SIGKILL else "ran out of memory"
        )
        return BudgetError(f"{who} {why} on {command.device} while it started: {_SMALLER}; {where}")
    if _found(_PORT, said):
        return BackendError(f"{who}: port {command.port} was taken while it started: set {command.role}.address")
    if missing := re.search(r"No module named '?([\w.]+)'?", said):
        program = one_line(command.words[0], 200)
        key = f"servers.{command.engine}_python"
        return BackendError(
            f"{program} has no module {missing[1]}: set {key} to a Python with {command.engine}; {where}"
        )
    return BackendError(f"{who} ended with {describe_code(code)} while it started: {last_lines(said)}; {where}")


def describe_code(code: int) -> str:
    """Return an exit code, or a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def last_lines(said: str) -> str:
    """Return the last lines that a server wrote, on one line."""
    lines = [" ".join(line.split()) for line in said.splitlines()[1:] if line.strip()]
    return one_line(" | ".join(lines[-_LAST_LINES:]) or "it wrote nothing", _SHOWN_CHARACTERS)


def _found(patterns: tuple[str, ...], said: str) -> re.Match[str] | None:
    return next((found for pattern in patterns if (found := re.search(pattern, said, re.IGNORECASE))), None)
