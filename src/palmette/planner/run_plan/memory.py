"""What a run in this process is planned to hold in each phase, as its meter counts them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from palmette.errors import BackendError, ConfigError
from palmette.planner.lines import HEAP, HEAP_SHARE, LEARNING, Phase
from palmette.planner.plan import plan_job
from palmette.planner.run_plan.in_process import devices_here, job_in_process
from palmette.settings import Config

_METER_PHASES = {"generate": "expand", "score": "score", "embed": "embed"}
"""What the meter of a search calls the phases of a plan."""


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes planned on the policy's device for each of the meter's phases, and the limit of a declared device.

    Where the policy is on servers it is the device of the reward model, or else of the embedder.
    `returns_blocks`: freed blocks have to go back to the system at once, since there is no room for a heap that keeps
    them.
    """

    by_phase: Mapping[str, int]
    limit_bytes: int | None = None
    returns_blocks: bool = False


def planned_memory(config: Config, *, train: bool = False) -> PlannedMemory:
    """Return what a search, or training, in this process is planned to hold.

    Nothing for a model of unknown shape, and for a search with all its models on servers.
    """
    try:
        job = job_in_process(config, train=train)
        plan = plan_job(job, devices_here(config, train=train))
    except (ConfigError, BackendError):
        return PlannedMemory({})
    here = "policy" if not job.policy_elsewhere else "reward" if job.reward is not None else "embedder"
    device = next((device for device in plan.devices if here in device.roles), None)
    if device is None:
        return PlannedMemory({})
    planned = {_METER_PHASES[phase.name]: phase.bytes for phase in device.phases if phase.name in _METER_PHASES}
    searching = [phase for phase in device.phases if phase.name not in LEARNING]
    planned["search"] = max(phase.bytes for phase in searching)
    planned |= {phase.name: phase.bytes for phase in device.phases if phase.name in LEARNING}
    planned["hand-over"] = max(map(_left_by, searching))
    update = [phase for phase in device.phases if phase.name == "update"]
    keeps = any(line.holder == HEAP for phase in update for line in phase.lines)
    # What was detected as free may change during the run: only a size that the user declared is a limit.
    limit = None if config.memory.devices is None else device.peak.limit_bytes
    return PlannedMemory(planned, limit, returns_blocks=bool(update) and not keeps)


def _left_by(phase: Phase) -> int:
    """Return what a phase of a search leaves when it ends: its KV cache, and the share of logits that a heap keeps."""
    freed = sum(line.bytes for line in phase.lines if line.kind == "activations")
    freed += math.floor((1 - HEAP_SHARE) * sum(line.bytes for line in phase.lines if line.kind == "logits"))
    return phase.bytes - freed
