"""What to tell a user whose work does not fit at its smallest."""

from collections.abc import Sequence

from palmette.memory.reading import Reading
from palmette.units import format_bytes


def gave_up(
    name: str,
    unit: str,
    tried: Sequence[int],
    reading: Reading,
    planned_bytes: int | None = None,
    limit_bytes: int | None = None,
    advice: str = "",
) -> str:
    """Return the message for a piece that failed at the last of the sizes tried."""
    smallest = tried[-1]
    sizes = ", ".join(str(size) for size in dict.fromkeys(tried))
    plan = f"Planned {format_bytes(planned_bytes)}; the" if planned_bytes is not None else "The"
    limit = "" if limit_bytes is None else f" of {format_bytes(limit_bytes)} that it may hold"
    held = f"this process holds {format_bytes(reading.held_bytes)}{limit}"
    if reading.other_bytes is not None and reading.other_bytes > reading.total_bytes // 100:
        held = f"{held}, other processes hold {format_bytes(reading.other_bytes)}"
    return (
        f"out of memory at the smallest {name} ({smallest} {unit}{'' if smallest == 1 else 's'}, tried {sizes}). "
        f"{plan} device has {format_bytes(reading.free_bytes)} free: {held}.{advice and ' '}{advice}"
    )


def over_limit(held_bytes: int, limit_bytes: int) -> str:
    """Return why a piece was made smaller before it was tried."""
    return f"{format_bytes(held_bytes)} held, the limit is {format_bytes(limit_bytes)}"
