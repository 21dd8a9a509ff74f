"""Quantities and texts as people read them: parse "18GiB", print "17.3 GiB"."""

import difflib
import re
from collections.abc import Iterable

from palmette.errors import ConfigError

_SCALES = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str | int) -> int:
    """Return a number of bytes from `2GiB`, `1.5 GB`, `512` or an integer; raise ConfigError on anything else."""
    if isinstance(text, int):
        if text < 0:
            raise ConfigError(f"{text} is no amount of memory: bytes cannot be negative")
        if text > 2**62:
            raise ConfigError("that is more memory than any machine has")
        return text
    match = _QUANTITY.fullmatch(text)
    scale = _SCALES.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise ConfigError(f"{text!r} is no amount of memory. Write it like '2GiB', '800MiB' or '16GB'")
    amount = float(match[1]) * scale
    if amount > 2**62:
        raise ConfigError(f"{text[:40]!r} is more memory than any machine has")
    return round(amount)


def format_bytes(count: int) -> str:
    """Print bytes in the largest binary unit that keeps the number at 1 or above."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: float) -> str:
    """Print a count with a thousands separator, or in millions: `12,345`, `135.0 M`."""
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,.0f}"


def count_of(count: int, one: str, many: str | None = None) -> str:
    """Print a count with its noun: `1 token`, `2,048 tokens`. `many` is the plural of a noun that takes no plain s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def format_seconds(seconds: float) -> str:
    """Print a duration as `8.4 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def one_line(text: str, longest: int = 1000) -> str:
    """Return a text without line breaks and control characters, cut: what it names cannot draw on a terminal."""
    cut = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(character if character.isprintable() else " " for character in cut)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelled one most likely meant."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def describe_error(error: BaseException, longest: int = 200) -> str:
    """Return an error's type and message on one line, cut to so many characters."""
    return one_line(" ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":"), longest)
