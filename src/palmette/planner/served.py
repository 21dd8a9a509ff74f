"""What a search holds on each device where its models run in servers, and how to start these servers."""

from collections.abc import Sequence
from dataclasses import replace

from palmette.planner.devices import Device
from palmette.planner.job import Job, Model
from palmette.planner.lines import AppliedRule, DeviceAllocation, Line, Server, total
from palmette.planner.place import Placement, apply_rule
from palmette.planner.search_sizes import (
    CUDA_CONTEXT_BYTES,
    embedder_lines,
    kv_note,
    process_line,
    reward_kv,
    reward_lines,
)
from palmette.planner.servers import (
    ENGINES,
    KV_BLOCK_TOKENS,
    POLICY_FRACTION,
    REWARD_FRACTION,
    REWARD_FRACTION_WITH_EMBEDDER,
    ServerShare,
    context_length,
    least_server_bytes,
    make_server,
    one_question_fractions,
    prefill_tokens,
    served_lines,
    server_share,
)
from palmette.units import count_of

_PHASES = {"policy": "generate", "reward": "score"}


def allocate_served(
    job: Job, placement: Placement, allocations: dict[Device, DeviceAllocation], rules: list[AppliedRule]
) -> list[Server]:
    """Allocate servers and the embedder on their devices; return the servers in the order to start them.

    The reward server starts first: on a device of its own that makes no difference, on a shared one the policy's KV
    cache then gets all that is left. The embedder is loaded last, into what both leave free.
    """
    job = replace(job, policy=job.policy.sharded(), reward=None if job.reward is None else job.reward.sharded())
    servers: list[Server] = []
    embedder = _allocate_embedder(job, placement, allocations)
    if job.reward is not None and placement.reward is not None and placement.reward.kind == "cpu":
        allocation = allocations[placement.reward]
        resident, allocation.by_phase["score"] = reward_lines(job.reward, job.search)
        allocation.resident += resident
        left = allocation.left_bytes(job.inference_share)
        allocation.resident.append(reward_kv(job.reward, job.policy, job.search, left))
    elif job.reward is not None and placement.reward is not None:
        device = placement.reward
        later = embedder if placement.embedder == device else []
        wanted = dict.fromkeys(ENGINES, REWARD_FRACTION_WITH_EMBEDDER if later else REWARD_FRACTION)
        policy_bytes = 0
        if device == placement.policy:
            wanted = one_question_fractions(job.reward, device, job.search, total(allocations[device].resident))
            policy_bytes = least_server_bytes(job.policy, device, _least_kv_bytes(job, "policy", job.policy, device))
        own = [allocations[device] for device in placement.devices_of("reward")]
        share = _server_share(job, "reward", job.reward, own, total(later) + policy_bytes, wanted)
        servers.append(_allocate_server(job, "reward", job.reward, own, share, 1))
        if later and device != placement.policy:
            decision = f"{share.fractions[job.server]:.2f} instead of {REWARD_FRACTION:.2f} on {device.name}"
            rules.append(apply_rule("reward-fraction", decision))
    device = placement.policy
    later = embedder if placement.embedder == device else []
    wanted = dict.fromkeys(ENGINES, 1.0 if device == placement.reward else POLICY_FRACTION)
    own = [allocations[device] for device in placement.devices_of("policy")]
    share = _server_share(job, "policy", job.policy, own, total(later), wanted)
    servers.append(_allocate_server(job, "policy", job.policy, own, share, len(servers) + 1))
    if placement.embedder is not None:
        allocations[placement.embedder].resident += embedder
    return servers


def _allocate_embedder(job: Job, placement: Placement, allocations: dict[Device, DeviceAllocation]) -> list[Line]:
    """Allocate what the searching process holds: its libraries, and the embedder's activations.

    Returns the embedder's resident lines where it is on a GPU: they are allocated after the servers. On the host,
    where no server runs, they are allocated at once, so that a KV cache there grows into what they leave.
    """
    reward_on_host = job.reward if placement.reward is not None and placement.reward.kind == "cpu" else None
    if reward_on_host is not None or (placement.embedder is not None and placement.embedder.kind == "cpu"):
        libraries = process_line(reward_on_host, job.embedder, embeds=job.embedder is not None)
        allocations[placement.host].resident.append(libraries)
    if job.embedder is None or placement.embedder is None:
        return []
    resident, in_phase = embedder_lines(job.embedder, job.search)
    allocations[placement.embedder].by_phase["embed"] = in_phase
    if placement.embedder.kind == "cuda":
        note = "the process that searches"
        return [*resident, Line("embedder CUDA context", "embedder", CUDA_CONTEXT_BYTES, "declared", note=note)]
    allocations[placement.embedder].resident += resident
    return []


def _server_share(
    job: Job, role: str, model: Model, own: Sequence[DeviceAllocation], later_bytes: int, wanted: dict[str, float]
) -> ServerShare:
    """Return a server's fractions, which leave out what is on its device before it and what has to fit after it.

    Of several devices the one with the least memory decides for all.
    """
    allocation = min(own, key=lambda other: other.device.limit_bytes(1) or 0)
    return server_share(
        model, allocation.device, wanted=wanted, least_kv_bytes=_least_kv_bytes(job, role, model, allocation.device),
        limit_bytes=allocation.device.limit_bytes(job.inference_share) or 0,
        before_bytes=total(allocation.resident), after_bytes=later_bytes + allocation.largest_phase_bytes(),
    )  # fmt: skip


def _allocate_server(
    job: Job, role: str, model: Model, own: Sequence[DeviceAllocation], share: ServerShare, order: int
) -> Server:
    """Allocate a server with the KV that its fraction leaves, even where that is less than it needs."""
    search, least = job.search, _least_kv_bytes(job, role, model, own[0].device)
    kv_bytes, token = max(0, share.kv_bytes[job.server]), model.kv_token_bytes
    note = kv_note(kv_bytes // token, search)
    if kv_bytes < least:
        note += f", {count_of(least // token, 'token')} needed"
    kv = Line(f"{role} KV", "kv", kv_bytes, least_bytes=least, note=note)
    for allocation in own:
        allocation.resident += served_lines(role, model, allocation.device, kv)
        allocation.by_phase[_PHASES[role]] = []
    return make_server(role, model, [allocation.device for allocation in own], share, order, search, least // token)


def _least_kv_bytes(job: Job, role: str, model: Model, device: Device) -> int:
    """Return the least bytes of KV that a server works with: one path, in whole blocks, or what the settings demand.

    vLLM refuses to start where its KV cache does not hold one sequence of the longest length.
    """
    search = job.search
    tokens = -(-context_length(model, search) // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS
    size = tokens * model.kv_token_bytes
    if job.server == "vllm":  # SGLang shares its memory out by a fixed ratio: layers with a window are counted in full.
        size = model.shape.kv_path_bytes(tokens, model.dtype, prefill_tokens(device))
    if role == "policy" and search.kv_holds == "width":
        size = max(size, search.unshared_tokens * model.kv_token_bytes)
    return max(size, (search.kv_budget_bytes or 0) // model.shards if role == "policy" else 0)
