"""A cache that could not grow: what it asked for, and what it stays at."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Freeze:
    """Memory ran out as a cache grew, so its size became its limit."""

    wanted_tokens: int
    limit_tokens: int
    reason: str
