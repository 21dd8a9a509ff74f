"""What a check finds: whether a practice is kept, in words with the numbers found, and a setting that keeps it."""

from dataclasses import dataclass
from typing import Any

from palmette.settings import Config


@dataclass(frozen=True)
class Verdict:
    """Whether a practice is kept; `setting` keeps it where it is not, as `KEY VALUE`."""

    kept: bool
    said: str
    setting: str | None = None


def kept(said: str) -> Verdict:
    """Return the verdict that a practice is kept."""
    return Verdict(True, said)


def broken(said: str, setting: str | None = None) -> Verdict:
    """Return the verdict that a practice is broken, with a setting that keeps it."""
    return Verdict(False, said, setting)


def value_of(config: Config, key: str) -> Any:
    """Return the value of a dotted key; None for one that the config's strategy or algorithm does not have."""
    table_name, _, name = key.partition(".")
    table = getattr(config, table_name)
    if name in type(table).model_fields:
        return getattr(table, name)
    return getattr(table, "options", {}).get(name)
