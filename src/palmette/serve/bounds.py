"""What a request may ask for at the most, and how many there may be at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Limits of the gateway. What exceeds them is refused by name, before anything is generated."""

    body_bytes: int = 1 << 20
    messages: int = 256
    n: int = 16
    width: int = 64
    """Also what a strategy of any effort may take."""
    stops: int = 4
    stop_characters: int = 64
    seconds: float = 300.0
    """How long a search may take; then it ends with what it has found."""
    searches: int = 32
    """Searches under way at a time."""
    waiting: int = 64
    """Requests that wait for a place; further ones are told to come again."""
    wait_seconds: float = 30.0
    """How long a request waits for a place before it is told to come again."""
    drain_seconds: float = 20.0
    """How long searches under way may go on after SIGTERM. Most supervisors kill after 30 seconds."""
    kept_trees: int = 64
    """Trees whose pages can be opened, the newest."""
