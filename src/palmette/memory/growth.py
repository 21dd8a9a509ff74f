"""A cache that could not grow: what it asked for, and what it stays at."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Freeze:
    """Memory ran out as a cache grew, so its size became its limit."""

    wanted_tokens: int
    limit_tokens: int
    reason: str


@runtime_checkable
class TellsFreeze(Protocol):
    """A backend or a scorer with a cache that grows as needed, and stays at its size once memory ran out."""

    @property
    def freeze(self) -> Freeze | None:
        """The last time that the cache could not grow, None where it always could."""
