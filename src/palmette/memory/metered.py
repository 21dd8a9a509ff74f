"""A guard whose readings and rungs are those of a meter's device."""

from collections.abc import Callable

from palmette.memory.guard import Guard
from palmette.memory.meter import Meter
from palmette.memory.observe import held_bytes, read_device
from palmette.memory.reclaim import LEAST_BYTES, reclaim

ADVICE = "`palmette plan` names settings that fit"


def metered_guard(
    meter: Meter,
    name: str,
    *,
    unit: str,
    reclaim_least: int = LEAST_BYTES,
    spare: Callable[[], bool] = lambda: False,
    limit_bytes: int | None = None,
    planned_bytes: int | None = None,
) -> Guard:
    """Return a guard that tells its rungs to the meter, and gives memory back until a try frees less than said."""
    return Guard(
        name,
        unit=unit,
        reclaim=lambda: reclaim(lambda: held_bytes(meter.device), least_bytes=reclaim_least).total_bytes,
        observe=lambda: read_device(meter.device),
        record=meter.tell,
        spare=spare,
        limit_bytes=limit_bytes,
        planned_bytes=planned_bytes,
        advice=ADVICE,
    )
