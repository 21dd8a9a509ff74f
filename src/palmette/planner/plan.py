"""From a job and its devices to who holds what in which phase. Pure: nothing is read, nothing is loaded."""

from collections.abc import Sequence
from dataclasses import replace

from palmette.planner.devices import Device
from palmette.planner.in_process import allocate_in_process
from palmette.planner.job import Job
from palmette.planner.lines import (
    HEAP_SHARE,
    MARGIN_SHARE,
    DeviceAllocation,
    DevicePlan,
    Fired,
    Line,
    Phase,
    Plan,
    Server,
    total,
)
from palmette.planner.place import Placement, fire, place
from palmette.planner.search_sizes import CUDA_CONTEXT_BYTES
from palmette.planner.served import allocate_served
from palmette.planner.servers import ENGINES
from palmette.planner.update_sizes import adapter_line, optimizer_line, reference_lines, update_lines


def plan_job(job: Job, devices: Sequence[Device]) -> Plan:
    """Return the plan; whether it fits is told by its phases.

    Raises ConfigError where a setting names a device that is not there, or parts the embedder from the reward model.
    """
    placed = place(job, devices)
    job = _as_held(job, placed)
    rules = list(placed.rules)
    allocations = {device: DeviceAllocation(device) for device in (*devices, placed.host)}
    if job.update is not None:
        _bring_optimizer(job, placed, allocations)
    found: list[Server] = []
    if job.served and placed.policy.kind == "cuda":
        found = allocate_served(job, placed, allocations, rules)
        found = _for_both(job, placed, devices, found)
    else:
        allocate_in_process(job, placed, allocations)
    rules.append(fire("inference-share", f"a search may take {job.inference_share:.0%} of a device"))
    if job.update is not None:
        _update(job, placed, allocations, rules)
        rules.append(fire("training-share", f"an update may take {job.training_share:.0%} of a device"))
    plans = tuple(
        DevicePlan(allocation.device, placed.roles_on(allocation.device), _phases(job, allocation))
        for allocation in allocations.values()
        if not allocation.is_empty
    )
    idle = [device.name for device in devices if allocations[device].is_empty]
    remarks = [f"{', '.join(idle)}: nothing sits there"] if idle and devices else []
    plan = Plan(job.mode, plans, tuple(found), tuple(rules), tuple(remarks))
    return replace(plan, remarks=(*remarks, *_remarks(job, found))) if plan.fits else plan


def _as_held(job: Job, placed: Placement) -> Job:
    """Return the job with narrow weights only where they are: in a search, for a model on the CPU."""
    if placed.policy.kind != "cpu" or job.update is not None:
        job = replace(job, policy=replace(job.policy, quantize="none"))
    if job.reward is not None and (placed.reward is None or placed.reward.kind != "cpu"):
        job = replace(job, reward=replace(job.reward, quantize="none"))
    return job


def _for_both(job: Job, placed: Placement, devices: Sequence[Device], found: list[Server]) -> list[Server]:
    """Return the servers with what the other engine's would be told: on a shared device its shares add up otherwise."""
    for engine in ENGINES:
        if engine == job.server:
            continue
        allocations = {device: DeviceAllocation(device) for device in (*devices, placed.host)}
        if job.update is not None:
            _bring_optimizer(job, placed, allocations)
        others = allocate_served(replace(job, server=engine), placed, allocations, [])
        found = [
            replace(
                own,
                commands={**own.commands, engine: other.commands[engine]},
                fractions={**own.fractions, engine: other.fractions[engine]},
                kv_tokens={**own.kv_tokens, engine: other.kv_tokens[engine]},
            )
            for own, other in zip(found, others, strict=True)
        ]
    return found


def _bring_optimizer(job: Job, placed: Placement, allocations: dict[Device, DeviceAllocation]) -> None:
    """DeviceAllocation what training keeps between updates: it is there while the policy generates too."""
    assert job.update is not None
    lines = [*adapter_line(job.policy, job.update), optimizer_line(job.policy, job.update)]
    if job.served and placed.policy.kind == "cuda":
        lines += [
            Line("learner weights", "weights", job.policy.weight_bytes, note="a copy of its own beside the server's"),
            Line("learner CUDA context", "runtime", CUDA_CONTEXT_BYTES, "declared", note="one process"),
        ]
    if job.update.reference == "host":
        allocations[placed.host].resident += reference_lines(job.policy, same_device=True)[0]
    allocations[placed.policy].resident += lines


def _update(job: Job, placed: Placement, allocations: dict[Device, DeviceAllocation], rules: list[Fired]) -> None:
    """Add the phase of the update. Before it, caches and passes are given back, and a policy server its weights."""
    assert job.update is not None
    sleeping = "policy weights" if job.served and placed.policy.kind == "cuda" else None
    for allocation in allocations.values():
        stays = [line for line in allocation.resident if line.kind not in ("kv", "activations")]
        allocation.update_resident += [line for line in stays if line.holder != sleeping]
    trained = allocations[placed.policy].passing
    trained["update"] = update_lines(job.policy, job.update, job.predicted)
    if job.update.reference == "host":
        _, window = reference_lines(job.policy, same_device=placed.policy == placed.host)
        trained["update"] += window
        rules.append(fire("reference-on-host", f"{placed.policy.name} trains: the reference is in host memory"))


def _phases(job: Job, allocation: DeviceAllocation) -> tuple[Phase, ...]:
    """Return the device's phases; one in which it holds just what it always holds is told once."""
    names = ["generate", *(["score"] if job.reward else []), *(["embed"] if job.embedder else [])]
    shown = [name for name in names if name in allocation.passing] or names[:1]
    phases = []
    for name in [*shown, *(["update"] if job.update is not None else [])]:
        stays = allocation.update_resident if name == "update" else allocation.resident
        lines = [*stays, *allocation.passing.get(name, [])]
        spare = allocation.margin_bytes(total(line for line in stays if line.kind != "kv"), name)
        if spare:
            note = f"{MARGIN_SHARE:.0%} of all but caches, {HEAP_SHARE:.0%} of logits freed before"
            lines.append(Line("margin", "margin", spare, note=note))
        share = job.training_share if name == "update" else job.inference_share
        if lines:
            phases.append(Phase(name, tuple(lines), share, allocation.device.limit_bytes(share)))
    return tuple(phases)


def _remarks(job: Job, found: Sequence[Server]) -> list[str]:
    """Return what a reader should know beside the numbers."""
    said = []
    for server in found:
        for engine, tokens in server.kv_tokens.items():
            if engine != job.server and tokens < server.needed_tokens:
                said.append(
                    f"with {engine} the {server.role}'s KV would hold {tokens:,} tokens of {server.needed_tokens:,} "
                    f"that are needed: start {job.server}"
                )
        tokens, search = server.kv_tokens[job.server], job.search
        if server.role == "policy" and tokens < search.unshared_tokens:
            said.append(
                f"the policy's KV holds {tokens:,} tokens; {search.width} branches that share only the prompt need "
                f"{search.unshared_tokens:,}, so branches share or wait"
            )
    if len(found) > 1:
        said.append(
            "start the servers in the order given: SGLang's fraction is of what is free when it starts, and vLLM "
            "refuses to start where less than its share is free; an embedder is loaded after them"
        )
    return said
