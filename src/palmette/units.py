"""Parses and prints quantities such as "18GiB"; makes text safe for one line of a terminal."""

import difflib
import re
from collections.abc import Iterable
from pathlib import PurePath

from palmette.errors import ConfigError

_SCALES = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip
_LONGEST_PATH = 1 << 16
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes in `2GiB`, `1.5 GB`, `512` or an integer. Raises ConfigError for anything else."""
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
    """Return a number of bytes as text in the largest binary unit of which it is at least 1: `512 B`, `17.3 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: float) -> str:
    """Return a count as text with a thousands separator, or in millions: `12,345`, `135.0 M`."""
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,.0f}"


def count_of(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 token`, `2,048 tokens`. `many` is the plural if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def format_seconds(seconds: float) -> str:
    """Return a duration as text: `8.4 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def one_line(text: str, longest: int = 1000) -> str:
    """Return a text with control characters and line breaks replaced by spaces, cut to `longest` characters.

    Use it for text from files and models: printed as it is, it could change what a terminal shows.
    """
    cut = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(character if character.isprintable() else " " for character in cut)


def one_line_path(path: PurePath) -> str:
    """Return a path as one line, never cut: its folders may have any name."""
    return one_line(str(path), _LONGEST_PATH)


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known word closest in spelling to `word`, or None if none is close, by `least` of 1 for the same."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=least)
    return matches[0] if matches else None


def describe_error(error: BaseException, longest: int = 200) -> str:
    """Return an error's type and message as one line, cut to `longest` characters."""
    return one_line(" ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":"), longest)
