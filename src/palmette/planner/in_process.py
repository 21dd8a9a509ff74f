"""Gathers what a search holds that runs inside this process."""

from palmette.planner.devices import Device
from palmette.planner.job import Job
from palmette.planner.lines import DeviceAllocation, Line
from palmette.planner.place import Placement
from palmette.planner.search_sizes import (
    CUDA_CONTEXT_BYTES,
    embedder_lines,
    policy_kv,
    policy_lines,
    process_line,
    reward_kv,
    reward_lines,
)

_REWARD_PART = 4
"""Where caches may grow as they like, the reward model's is planned to take at most one in so many bytes left."""


def allocate_in_process(job: Job, placed: Placement, allocations: dict[Device, DeviceAllocation]) -> None:
    """Put weights, passes and caches of all roles on their devices; the policy's cache gets what is left."""
    adapts = job.update is not None and job.update.method == "lora"
    libraries = process_line(job.policy, job.reward, job.embedder, embeds=job.embedder is not None, adapts=adapts)
    allocations[placed.host].resident.append(libraries)
    used = dict.fromkeys(device for device in (placed.policy, placed.reward, placed.embedder) if device is not None)
    for device in used:
        if device.kind == "cuda":
            allocations[device].resident.append(
                Line("CUDA context", "runtime", CUDA_CONTEXT_BYTES, "declared", note="this process")
            )
    _add(allocations[placed.policy], "generate", policy_lines(job.policy, job.search))
    if job.reward is not None and placed.reward is not None:
        _add(allocations[placed.reward], "score", reward_lines(job.reward, job.search))
    if job.embedder is not None and placed.embedder is not None:
        _add(allocations[placed.embedder], "embed", embedder_lines(job.embedder, job.search))
    if job.reward is not None and placed.reward is not None:
        left = allocations[placed.reward].left_bytes(job.inference_share)
        part = None if left is None else left // _REWARD_PART
        if left is not None and placed.reward == placed.policy:
            part = max(0, min(left // _REWARD_PART, left - policy_kv(job.policy, job.search, 0).needed_bytes))
        allocations[placed.reward].resident.append(reward_kv(job.reward, job.policy, job.search, part))
    left = allocations[placed.policy].left_bytes(job.inference_share)
    allocations[placed.policy].resident.append(policy_kv(job.policy, job.search, left))


def _add(allocation: DeviceAllocation, phase: str, lines: tuple[list[Line], list[Line]]) -> None:
    stays, passes = lines
    allocation.resident += stays
    allocation.passing[phase] = passes
