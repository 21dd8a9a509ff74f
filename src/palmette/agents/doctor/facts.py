"""Numbers in a log: what was asked for, what is free, which model, and what follows from them by arithmetic."""

import math
import re
from collections.abc import Mapping

from palmette.errors import ConfigError
from palmette.failures.find import fact_patterns
from palmette.units import one_line, parse_bytes

_LONGEST_LOG = 200_000
_LONGEST_LINE = 2_000
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def readable(log: str) -> str:
    """Return a log as it is searched: its first and its last part if it is very long, and lines cut in the middle."""
    if len(log) > _LONGEST_LOG:
        log = f"{log[: _LONGEST_LOG // 4]}\n{log[-3 * _LONGEST_LOG // 4 :]}"
    half = _LONGEST_LINE // 2
    lines = log.splitlines()
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}" for line in lines)


def facts_of(log: str) -> dict[str, str]:
    """Return the facts that a log tells, as they are written in it."""
    found = {}
    for name, patterns in fact_patterns().items():
        match = next(filter(None, (pattern.search(log) for pattern in patterns)), None)
        if match is not None:
            found[name] = one_line(match[1], 200)
    return found


def derived(facts: Mapping[str, str]) -> dict[str, str]:
    """Return what follows from facts: in how many parts a block fits, a fraction or a length that fits."""
    found: dict[str, str] = {}
    tried, free = bytes_of(facts.get("tried")), bytes_of(facts.get("free"))
    if tried and free and tried > free:
        found["parts"] = str(2 ** math.ceil(math.log2(tried / free)))
    left, size = number_of(facts.get("left")), number_of(facts.get("size"))
    if left and size:
        found["fitting"] = f"{math.floor(100 * left / size - 1) / 100:.2f}"
    wanted, needed, available = (number_of(facts.get(name)) for name in ("wanted", "needed", "available"))
    if wanted and needed and available and wanted > 100:
        found["fitting"] = str(int(wanted * available / needed) // 16 * 16)
    return found


def bytes_of(text: str | None) -> int | None:
    """Return an amount of memory, None for none; a number without a unit is one of bytes."""
    try:
        return None if text is None else parse_bytes(text)
    except ConfigError:
        return None


def number_of(text: str | None) -> float | None:
    """Return the first number in a text."""
    match = _NUMBER.search(text.replace(",", "")) if text else None
    return float(match[0]) if match else None
