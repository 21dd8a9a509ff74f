"""From a job and its devices to what each device holds in each phase. Pure: nothing is read, nothing is loaded."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from palmette.errors import ConfigError
from palmette.planner.critic_sizes import critic_state_lines, critic_update_lines
from palmette.planner.devices import Device
from palmette.planner.host_servers import allocate_on_host
from palmette.planner.in_process import allocate_in_process
from palmette.planner.job import Job, Model
from palmette.planner.lines import (
    HEAP,
    HEAP_SHARE,
    HEAP_TIMES,
    LEARNING,
    MARGIN_SHARE,
    Allocations,
    AppliedRule,
    BudgetFault,
    DeviceAllocation,
    DevicePlan,
    Line,
    Phase,
    Plan,
    Server,
    total,
)
from palmette.planner.models.shard import can_shard
from palmette.planner.place import Placement, apply_rule, place
from palmette.planner.search_sizes import CUDA_CONTEXT_BYTES
from palmette.planner.served import allocate_served
from palmette.planner.servers import ENGINES
from palmette.planner.update_sizes import (
    adapter_line,
    backward_line,
    optimizer_line,
    read_lines,
    reference_lines,
    update_lines,
)
from palmette.units import count_of, format_bytes

_SHARDS = (1, 2, 4, 8, 16)


def plan_job(job: Job, devices: Sequence[Device]) -> Plan:
    """Return the plan of a job; `Plan.fits` says whether it can be carried out.

    Where a served model fits no single GPU, it is cut for two of them, or four, ...: the fewest that it fits. Raises
    ConfigError where a setting names a device that is not there, or puts the embedder on another device than the
    reward model.
    """
    plan = _plan(job, devices)
    if plan.fits or plan.budget_faults or not plan.servers or job.update is not None:
        return plan
    short = {role for device, _ in plan.misfits for role in device.roles}
    gpus = sum(device.kind == "cuda" for device in devices)
    for policy, reward in _shard_counts(job, short, gpus):
        cut = replace(job, policy=replace(job.policy, shards=policy))
        if cut.reward is not None:
            cut = replace(cut, reward=replace(cut.reward, shards=reward))
        try:
            tried = _plan(cut, devices)
        except ConfigError:
            continue
        if tried.fits:
            return tried
    return plan


def _shard_counts(job: Job, short: Collection[str], gpus: int) -> list[tuple[int, int]]:
    """Return for how many GPUs to cut policy and reward model, the fewest first; only those that do not fit are cut."""

    def counts(role: str, model: Model | None) -> list[int]:
        if model is None or role not in short:
            return [1]
        return [count for count in _SHARDS if count <= gpus and can_shard(model.shape, count)]

    least = 1 if job.reward is None else 2
    pairs = itertools.product(counts("policy", job.policy), counts("reward", job.reward))
    cut = [pair for pair in pairs if pair != (1, 1) and sum(pair) - 2 + least <= gpus]
    return sorted(cut, key=lambda pair: (sum(pair), pair))


def _plan(job: Job, devices: Sequence[Device]) -> Plan:
    """Return the plan of a job with its models cut for as many GPUs as it says."""
    placement = place(job, devices)
    job = _quantized_where_supported(job, placement)
    rules = list(placement.rules)
    allocations = Allocations()
    if job.update is not None:
        _allocate_training_state(job, placement, allocations)
    servers: list[Server] = []
    if job.served and placement.policy.kind == "cuda":
        servers = allocate_served(job, placement, allocations, rules)
        servers = _with_other_engines(job, placement, servers)
    elif job.host_roles and placement.policy.kind == "cpu":
        servers = allocate_on_host(job, placement, allocations)
    else:
        allocate_in_process(job, placement, allocations)
    rules.append(apply_rule("inference-share", f"a search may take {job.inference_share:.0%} of a device"))
    if job.update is not None:
        _allocate_update(job, placement, allocations, rules)
        rules.append(apply_rule("training-share", f"an update may take {job.training_share:.0%} of a device"))
    order = [device for device in dict.fromkeys((*devices, placement.host)) if device in allocations]
    plans = tuple(
        DevicePlan(device, placement.roles_on(device), _phases(job, allocations[device]))
        for device in order
        if not allocations[device].is_empty
    )
    used = {plan.device for plan in plans}
    unused = [device.name for device in devices if device not in used]
    remarks = [*([f"{_listed(unused)}: not used"] if unused else []), *_context_remarks(job), *_counted_remarks(job)]
    faults = _budget_faults(job, placement) if job.checks_kv_budgets else ()
    plan = Plan(job.mode, plans, tuple(servers), tuple(rules), tuple(remarks), faults)
    if plan.fits:
        plan = replace(
            plan, remarks=(*remarks, *_server_remarks(job, servers), *_learner_remarks(job, placement, plan))
        )
    return plan


def _listed(names: Sequence[str]) -> str:
    """Return the names with commas; of more than four the first and the last with their number."""
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names):,} devices)"


def _context_remarks(job: Job) -> list[str]:
    """Return a remark for each model that takes fewer tokens than a whole branch may have: a server cuts it."""
    search = job.search
    return [
        f"search.total_tokens is {search.total_tokens:,}: with a prompt of {count_of(search.prompt_tokens, 'token')} "
        f"a branch may have {search.path_tokens:,}, and {model.name} takes {positions:,}. A server is started with "
        f"{positions:,} and ends branches there, a search inside one process refuses longer ones: set "
        + (
            f"search.total_tokens to {positions - search.prompt_tokens}"
            if positions > search.prompt_tokens
            else f"memory.prompt_tokens below {positions}"
        )
        for model in (job.policy, job.reward)
        if model is not None and (positions := model.shape.positions) is not None and positions < search.path_tokens
    ]


def _counted_remarks(job: Job) -> list[str]:
    """Return a remark for each model whose parameters are not from a formula."""
    return [
        f"{model.name}: there is no formula for its model_type {model.shape.family}; its tensors and its KV cache were "
        f"counted on the model itself, {model.shape.counted}"
        for model in (job.policy, job.reward)
        if model is not None and model.shape.counted
    ]


def _quantized_where_supported(job: Job, placement: Placement) -> Job:
    """Return the job with quantized weights only where they are supported: in a search, for a model on the CPU."""
    if placement.policy.kind != "cpu" or job.update is not None:
        job = replace(job, policy=replace(job.policy, quantize="none"))
    if job.reward is not None and (placement.reward is None or placement.reward.kind != "cpu"):
        job = replace(job, reward=replace(job.reward, quantize="none"))
        if job.small_reward is not None:
            job = replace(job, small_reward=replace(job.small_reward, quantize="none"))
    return job


def _with_other_engines(job: Job, placement: Placement, servers: list[Server]) -> list[Server]:
    """Return the servers with command, fraction and KV tokens of the engines that were not chosen, too.

    These are planned apart: on a shared device one engine's fractions do not follow from another's.
    """
    for engine in ENGINES:
        if engine == job.server:
            continue
        allocations = Allocations()
        if job.update is not None:
            _allocate_training_state(job, placement, allocations)
        others = allocate_served(replace(job, server=engine), placement, allocations, [])
        servers = [
            replace(
                own,
                commands={**own.commands, engine: other.commands[engine]},
                fractions={**own.fractions, engine: other.fractions[engine]},
                kv_tokens={**own.kv_tokens, engine: other.kv_tokens[engine]},
            )
            for own, other in zip(servers, others, strict=True)
        ]
    return servers


def _allocate_training_state(job: Job, placement: Placement, allocations: dict[Device, DeviceAllocation]) -> None:
    """Allocate what training keeps between updates, and therefore also while the policy generates."""
    assert job.update is not None
    update = job.update if placement.policy.kind == "cuda" else replace(job.update, host_optimizer=False)
    lines = [*adapter_line(job.policy, update), optimizer_line(job.policy, update)]
    if job.served and placement.policy.kind == "cuda":
        lines += [
            Line("learner weights", "weights", job.policy.weight_bytes, note="a copy of its own beside the server's"),
            Line("learner CUDA context", "runtime", CUDA_CONTEXT_BYTES, "declared", note="one process"),
        ]
    if job.critic is not None:
        lines += critic_state_lines(job.critic, update)
    if job.update.reference == "host":
        same_device = placement.policy == placement.host
        allocations[placement.host].resident += reference_lines(job.policy, same_device=same_device)[0]
    if placement.policy.kind == "cpu":
        lines.append(backward_line())
    elif update.host_optimizer:
        allocations[placement.host].resident += [line for line in lines if line.kind == "optimizer"]
        lines = [line for line in lines if line.kind != "optimizer"]
    allocations[placement.policy].resident += lines


def _allocate_update(
    job: Job, placement: Placement, allocations: dict[Device, DeviceAllocation], rules: list[AppliedRule]
) -> None:
    """Allocate the phases that learn. Before them KV caches, activations and a policy server's weights are freed."""
    assert job.update is not None
    freed = "policy weights" if job.served and placement.policy.kind == "cuda" else None
    for allocation in allocations.values():
        kept = [line for line in allocation.resident if line.kind not in ("kv", "activations")]
        allocation.update_resident += [line for line in kept if line.holder != freed]
    by_phase = allocations[placement.policy].by_phase
    by_phase |= {name: read_lines(job.policy, job.update) for name in job.update.reads}
    by_phase["update"] = update_lines(job.policy, job.update, job.predicted)
    if job.critic is not None:
        by_phase["update"] = max(by_phase["update"], critic_update_lines(job.critic, job.update), key=total)
        by_phase["values"] = read_lines(job.critic, job.update)
    if placement.policy.kind == "cuda":
        by_phase["update"].append(backward_line())
    if job.update.reference == "host":
        _, streamed = reference_lines(job.policy, same_device=placement.policy == placement.host)
        by_phase.setdefault("reference", []).extend(streamed)
        decision = f"{placement.policy.name} trains, the reference is in host memory"
        rules.append(apply_rule("reference-on-host", decision))


def _phases(job: Job, allocation: DeviceAllocation) -> tuple[Phase, ...]:
    """Return the device's phases. Phases in which it holds only what is resident are shown as one."""
    names = ["generate", *(["score"] if job.reward else []), *(["embed"] if job.embedder else [])]
    shown = [name for name in names if name in allocation.by_phase] or names[:1]
    phases = []
    learning = [name for name in LEARNING if name == "update" or name in allocation.by_phase]
    for name in [*shown, *(learning if job.update is not None else [])]:
        resident = allocation.update_resident if name in LEARNING else allocation.resident
        lines = [*resident, *allocation.by_phase.get(name, [])]
        margin = allocation.margin_bytes(total(line for line in resident if line.kind != "kv"), name)
        if margin:
            note = f"{MARGIN_SHARE:.0%} of all but caches, {HEAP_SHARE:.0%} of logits freed before"
            lines.append(Line("margin", "margin", margin, note=note))
        share = job.training_share if name in LEARNING else job.inference_share
        limit = allocation.device.limit_bytes(share)
        if name in LEARNING and allocation.device.kind == "cpu":
            lines += _heap_line(allocation.by_phase.get(name, []), None if limit is None else limit - total(lines))
        if lines:
            phases.append(Phase(name, tuple(lines), share, limit))
    return tuple(phases)


def _heap_line(lines: Sequence[Line], left_bytes: int | None) -> list[Line]:
    """Return what the C heap may keep of blocks that a phase has freed, nothing where so much is not left.

    Training then has them returned to the system at once, which takes time: see `memory.heap.mapped_blocks`.
    """
    kept = HEAP_TIMES * total(line for line in lines if line.kind in ("activations", "logits"))
    if not kept or (left_bytes is not None and kept > left_bytes):
        return []
    return [Line(HEAP, "runtime", kept, "measured", least_bytes=0, note="freed blocks, kept while there is room")]


def _server_remarks(job: Job, servers: Sequence[Server]) -> list[str]:
    """Return what to know about the servers beside their numbers."""
    remarks = []
    for server in servers:
        for engine, tokens in server.kv_tokens.items():
            if engine != job.server and tokens < server.needed_tokens:
                remarks.append(
                    f"with {engine} the {server.role}'s KV cache would hold {count_of(tokens, 'token')} of "
                    f"{server.needed_tokens:,} that are needed: start {job.server}"
                )
        tokens, search = server.kv_tokens[job.server], job.search
        if server.role == "policy" and tokens < search.unshared_tokens:
            remarks.append(
                f"the policy's KV cache holds {count_of(tokens, 'token')}; "
                f"{count_of(search.width, 'branch', 'branches')} that share only the prompt need "
                f"{search.unshared_tokens:,}, so branches have to share more or wait"
            )
    if len(servers) > 1:
        remarks.append(
            "start the servers in the order given: SGLang's fraction is of what is free when it starts, and vLLM "
            "refuses to start where less than its share is free; an embedder is loaded after them"
        )
    return remarks


def _learner_remarks(job: Job, placement: Placement, plan: Plan) -> list[str]:
    """Return when the learner has to be loaded where it shares a device with servers."""
    if job.update is None or not plan.servers:
        return []
    device = next(device for device in plan.devices if device.device == placement.policy)
    kinds = ("learner weights", "learner CUDA context", "LoRA weights", "optimizer state")
    size = format_bytes(sum(line.bytes for line in device.phases[0].lines if line.holder in kinds))
    return [
        f"load the learner with its optimizer state ({size} on {placement.policy.name}) before SGLang starts there: "
        f"its fraction is of what is free when it starts, and it would take the learner's memory, too; vLLM may start "
        f"before or after it"
    ]


def _budget_faults(job: Job, placement: Placement) -> tuple[BudgetFault, ...]:
    """Return the KV budgets that cannot hold a prompt of the planned length with a first step.

    `search.kv_budget` is divided evenly among the questions in flight. A server has no `reward.kv_budget`.
    """
    search, faults = job.search, []
    start = (
        f"a prompt of {count_of(search.prompt_tokens, 'token')} (memory.prompt_tokens) with a first step of "
        f"{search.first_step_tokens:,} needs {search.start_tokens:,}"
    )
    if search.kv_budget_bytes is not None:
        token, size = job.policy.kv_token_bytes, format_bytes(search.kv_budget_bytes)
        tokens = search.kv_budget_bytes // search.questions // token
        if tokens < search.start_tokens:
            many = search.questions > 1
            leaves = f"leaves each of {search.questions:,} questions in flight" if many else "holds"
            why = f"search.kv_budget is {size}, which {leaves} {_kv_tokens(tokens, token)}; {start}"
            faults.append(BudgetFault("search.kv_budget", search.questions * search.start_tokens * token, why))
    in_process = not job.served or (placement.reward is not None and placement.reward.kind == "cpu")
    if job.reward is not None and search.reward_kv_budget_bytes is not None and in_process:
        token, size = job.reward.kv_token_bytes, format_bytes(search.reward_kv_budget_bytes)
        tokens = search.reward_kv_budget_bytes // token
        if tokens < search.start_tokens:
            why = f"reward.kv_budget is {size}, which holds {_kv_tokens(tokens, token)}; {start}"
            faults.append(BudgetFault("reward.kv_budget", search.start_tokens * token, why))
    return tuple(faults)


def _kv_tokens(count: int, token_bytes: int) -> str:
    return f"{count_of(count, 'KV token')} of {token_bytes:,} bytes"
