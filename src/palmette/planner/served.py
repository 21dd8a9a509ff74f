"""Gathers what a search holds whose models are served: fractions, KV and start commands of each server."""

from dataclasses import replace

from palmette.planner.devices import Device
from palmette.planner.job import Job, Model
from palmette.planner.lines import DeviceAllocation, Fired, Line, Server, total
from palmette.planner.place import Placement, fire
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
    POLICY_FRACTION,
    REWARD_FRACTION,
    REWARD_FRACTION_WITH_EMBEDDER,
    Static,
    least_room,
    served_lines,
    server,
    small_shares,
    static_share,
)

_PHASES = {"policy": "generate", "reward": "score"}


def allocate_served(
    job: Job, placed: Placement, allocations: dict[Device, DeviceAllocation], rules: list[Fired]
) -> list[Server]:
    """Put servers and the embedder on their devices; return the servers in the order to start them.

    The reward server starts first: on a device of its own that changes nothing, on a shared one the policy's KV then
    gets all that is left. The embedder is loaded last, into what both have left free.
    """
    found: list[Server] = []
    embedder: list[Line] = []
    judge = job.reward if placed.reward is not None and placed.reward.kind == "cpu" else None
    if judge is not None or (placed.embedder is not None and placed.embedder.kind == "cpu"):
        allocations[placed.host].resident.append(process_line(judge, job.embedder, embeds=job.embedder is not None))
    if job.embedder is not None and placed.embedder is not None:
        embedder, passes = embedder_lines(job.embedder, job.search)
        allocations[placed.embedder].passing["embed"] = passes
        if placed.embedder.kind == "cuda":
            note = "the process that searches"
            embedder.append(Line("embedder CUDA context", "embedder", CUDA_CONTEXT_BYTES, "declared", note=note))
        else:  # The host is no server's: what sits there is counted before the caches that may grow beside it.
            allocations[placed.embedder].resident += embedder
            embedder = []
    if job.reward is not None and placed.reward is not None and placed.reward.kind == "cpu":
        allocation = allocations[placed.reward]
        stays, allocation.passing["score"] = reward_lines(job.reward, job.search)
        allocation.resident += stays
        left = allocation.left_bytes(job.inference_share)
        allocation.resident.append(reward_kv(job.reward, job.policy, job.search, left))
    elif job.reward is not None and placed.reward is not None:
        device = placed.reward
        beside = embedder if placed.embedder == device else []
        wishes = dict.fromkeys(ENGINES, REWARD_FRACTION_WITH_EMBEDDER if beside else REWARD_FRACTION)
        room = 0
        if device == placed.policy:
            wishes = small_shares(job.reward, device, job.search, total(allocations[device].resident))
            room = least_room(job.policy, device, _least_kv(job, "policy", job.policy))
        static = _static(job, "reward", job.reward, allocations[device], total(beside) + room, wishes)
        found.append(_add(job, "reward", job.reward, allocations[device], static, 1))
        if beside and device != placed.policy:
            fraction = static.fractions[job.server]
            rules.append(fire("reward-fraction", f"{fraction:.2f} instead of {REWARD_FRACTION:.2f} on {device.name}"))
    device = placed.policy
    beside = embedder if placed.embedder == device else []
    wishes = dict.fromkeys(ENGINES, 1.0 if device == placed.reward else POLICY_FRACTION)
    static = _static(job, "policy", job.policy, allocations[device], total(beside), wishes)
    found.append(_add(job, "policy", job.policy, allocations[device], static, len(found) + 1))
    if placed.embedder is not None:
        allocations[placed.embedder].resident += embedder
    return found


def _static(
    job: Job, role: str, model: Model, allocation: DeviceAllocation, after_bytes: int, wishes: dict[str, float]
) -> Static:
    """Return a server's fractions: what sits there before it, and what has to find room after it, is left alone."""
    return static_share(
        model, allocation.device, wishes=wishes, least_kv_bytes=_least_kv(job, role, model),
        limit_bytes=allocation.device.limit_bytes(job.inference_share) or 0,
        before_bytes=total(allocation.resident), after_bytes=after_bytes + allocation.passing_bytes(),
    )  # fmt: skip


def _add(job: Job, role: str, model: Model, allocation: DeviceAllocation, static: Static, order: int) -> Server:
    """Put a server's lines on its device: the KV that its fraction leaves it, be it less than what it needs."""
    search, least = job.search, _least_kv(job, role, model)
    held, token = max(0, static.kv_bytes[job.server]), model.kv_token_bytes
    note = kv_note(held // token, search) + (f", {least // token:,} tokens needed" if held < least else "")
    kv = Line(f"{role} KV", "kv", held, least_bytes=least, note=note)
    allocation.resident += served_lines(role, model, allocation.device, kv)
    allocation.passing[_PHASES[role]] = []
    return replace(server(role, model, allocation.device, static, order, search), needed_tokens=least // token)


def _least_kv(job: Job, role: str, model: Model) -> int:
    """Return the bytes of KV that a server cannot do without."""
    search = job.search
    wide = search.kv_holds == "width" and role == "policy"
    if role == "policy" and search.kv_budget_bytes is not None:
        return search.kv_budget_bytes
    return (search.unshared_tokens if wide else search.path_tokens) * model.kv_token_bytes
