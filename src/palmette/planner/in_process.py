"""What a search holds on each device where all models run inside this process."""

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

SMALL = "small reward"
"""What the second model of `likelihood_gain` is called in the lines of a plan."""

_REWARD_KV_DIVISOR = 4
"""Without a budget the reward model's KV cache is planned to take at most a quarter of the bytes left for caches."""


def allocate_in_process(job: Job, placement: Placement, allocations: dict[Device, DeviceAllocation]) -> None:
    """Allocate weights, activations and KV caches of all roles; the policy's KV cache gets what is left.

    Of a policy that is on servers elsewhere nothing but its tokenizer is allocated.
    """
    trains_lora = job.update is not None and job.update.method == "lora"
    models = (job.policy, job.reward, job.small_reward, job.embedder)  # The policy's tokenizer is here in any case.
    libraries = process_line(*models, embeds=job.embedder is not None, trains_lora=trains_lora)
    allocations[placement.host].resident.append(libraries)
    devices = (None if job.policy_elsewhere else placement.policy, placement.reward, placement.embedder)
    for device in dict.fromkeys(device for device in devices if device is not None):
        if device.kind == "cuda":
            allocations[device].resident.append(
                Line("CUDA context", "runtime", CUDA_CONTEXT_BYTES, "declared", note="this process")
            )
    if not job.policy_elsewhere:
        _allocate(allocations[placement.policy], "generate", policy_lines(job.policy, job.search))
    if job.reward is not None and placement.reward is not None:
        _allocate(allocations[placement.reward], "score", reward_lines(job.reward, job.search))
        if job.small_reward is not None:
            _allocate(allocations[placement.reward], "score", reward_lines(job.small_reward, job.search, SMALL))
    if job.embedder is not None and placement.embedder is not None:
        _allocate(allocations[placement.embedder], "embed", embedder_lines(job.embedder, job.search))
    if job.reward is not None and placement.reward is not None:
        left = allocations[placement.reward].left_bytes(job.inference_share)
        part = None if left is None else left // _REWARD_KV_DIVISOR
        if left is not None and placement.reward == placement.policy and not job.policy_elsewhere:
            part = max(0, min(left // _REWARD_KV_DIVISOR, left - policy_kv(job.policy, job.search, 0).needed_bytes))
        caches = [(job.reward, "reward")] + ([] if job.small_reward is None else [(job.small_reward, SMALL)])
        for model, name in caches:
            share = None if part is None else part // len(caches)
            allocations[placement.reward].resident.append(reward_kv(model, job.policy, job.search, share, name))
    if job.policy_elsewhere:
        return
    left = allocations[placement.policy].left_bytes(job.inference_share)
    allocations[placement.policy].resident.append(policy_kv(job.policy, job.search, left))


def _allocate(allocation: DeviceAllocation, phase: str, lines: tuple[list[Line], list[Line]]) -> None:
    """Add a role's resident lines, and under its phase the others."""
    resident, in_phase = lines
    allocation.resident += resident
    allocation.by_phase[phase] = [*allocation.by_phase.get(phase, ()), *in_phase]
