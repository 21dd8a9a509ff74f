"""What a search holds on the host where servers run its models there, and how to start these servers."""

import math
import shlex

from palmette.planner.devices import Device
from palmette.planner.job import Job, Model, SearchNeeds
from palmette.planner.lines import DeviceAllocation, Line, Server
from palmette.planner.place import Placement
from palmette.planner.search_sizes import (
    embedder_lines,
    kv_note,
    policy_kv,
    policy_lines,
    process_line,
    reward_kv,
    reward_lines,
)
from palmette.planner.servers import PORTS, context_length, role_flags, served_weights
from palmette.units import count_of

PROCESS_BYTES = {"sglang": 1792 * 2**20, "vllm": 1344 * 2**20}
"""What the processes of a server on a CPU hold beside weights, KV and activations: three of SGLang 0.5.23, four of vLLM
0.32. Measured as the drop of the machine's available memory."""

DRIFT_SHARE = 0.25
"""SGLang takes what is free after loading less a share of what was free before: what its own processes still import in
between (measured: 150 MiB), and what any other process takes (measured on a busy machine: 1.3 GiB), comes out of its KV
cache. The fraction leaves this share of what is free for that, and a cap on the tokens keeps SGLang from using it."""

BLOCK_TOKENS = 128
"""Tokens of one block of vLLM's KV cache on a CPU."""

_PASS_TOKENS = 4096
"""The most tokens of one forward pass: SGLang's chunk of a prefill on a CPU; vLLM's is no larger."""

_PHASES = {"policy": "generate", "reward": "score"}


def allocate_on_host(job: Job, placement: Placement, allocations: dict[Device, DeviceAllocation]) -> list[Server]:
    """Allocate servers, and beside them what stays in this process; return the servers in the order to start them."""
    host = allocations[placement.host]
    models = {"policy": job.policy, "reward": job.reward}
    served = {role: model for role, model in models.items() if model is not None and role in job.host_roles}
    inside = {role: model for role, model in models.items() if model is not None and role not in served}
    host.resident.append(process_line(*inside.values(), job.embedder, embeds=job.embedder is not None))
    lines = {"policy": policy_lines, "reward": reward_lines}
    for role, model in inside.items():
        resident, host.by_phase[_PHASES[role]] = lines[role](model, job.search)
        host.resident += resident
    for role, model in served.items():
        host.resident += _server_lines(job.server, role, model)
        host.by_phase[_PHASES[role]] = []
    if job.embedder is not None:
        resident, host.by_phase["embed"] = embedder_lines(job.embedder, job.search)
        host.resident += resident
    servers: list[Server] = []
    before_bytes = 0
    for role in ("reward", "policy"):  # The policy's KV cache gets what is left.
        if role not in (*served, *inside):
            continue
        model = served.get(role) or inside[role]
        left = host.left_bytes(job.inference_share)
        if role == "reward" and left is not None:
            left //= 4
        if role in inside:
            host.resident.append(
                reward_kv(model, job.policy, job.search, left)
                if role == "reward"
                else policy_kv(model, job.search, left)
            )
            continue
        needed = _least_tokens(role, model, job.search)
        most = _most_tokens(role, model, job.search)
        tokens = max(needed, most if left is None else min(most, _blocks(left, model)))
        kv = Line(
            f"{role} KV", "kv", tokens * model.kv_token_bytes, least_bytes=needed * model.kv_token_bytes,
            note=kv_note(tokens, job.search),
        )  # fmt: skip
        host.resident.append(kv)
        servers.append(_server(job, role, model, placement.host, tokens, needed, len(servers) + 1, before_bytes))
        before_bytes += kv.bytes + sum(line.bytes for line in _server_lines(job.server, role, model))
    return servers


def _server_lines(engine: str, role: str, model: Model) -> list[Line]:
    """Return what a server holds in every phase, except its KV cache."""
    shape = model.shape
    width = 4 * shape.hidden + 2 * (shape.query_width + 2 * shape.kv_width) + 3 * shape.intermediate
    note = f"a pass of {count_of(_PASS_TOKENS, 'token')}"
    return [
        served_weights(role, model),
        Line(f"{role} processes", "runtime", PROCESS_BYTES[engine], "measured", note=f"those of {engine}"),
        Line(f"{role} activations", "activations", _PASS_TOKENS * width * model.number_bytes, note=note),
    ]


def _most_tokens(role: str, model: Model, search: SearchNeeds) -> int:
    """Return the KV tokens that a server can use: those of all branches in flight; for scores of one question's."""
    if role == "reward":
        return _whole_blocks(search.as_scored.unshared_tokens)
    if search.kv_budget_bytes is not None:
        return _whole_blocks(search.kv_budget_bytes // model.kv_token_bytes)
    return _whole_blocks(search.questions * search.unshared_tokens)


def _least_tokens(role: str, model: Model, search: SearchNeeds) -> int:
    """Return the least KV tokens that a server works with: one path, or what the settings demand."""
    tokens = context_length(model, search.as_scored if role == "reward" else search)
    if role == "policy" and search.kv_holds == "width":
        tokens = max(tokens, search.unshared_tokens)
    budget = search.kv_budget_bytes if role == "policy" else None
    return _whole_blocks(max(tokens, (budget or 0) // model.kv_token_bytes))


def _whole_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def _blocks(size: int, model: Model) -> int:
    """Return the tokens of the whole blocks that so many bytes hold."""
    return size // (BLOCK_TOKENS * model.kv_token_bytes) * BLOCK_TOKENS


def _server(
    job: Job, role: str, model: Model, host: Device, tokens: int, needed: int, order: int, before_bytes: int
) -> Server:
    """Return how to start a server when servers before it hold `before_bytes`."""
    name, port = shlex.quote(model.name), PORTS[role]
    length = context_length(model, job.search.as_scored if role == "reward" else job.search)
    fractions: dict[str, float] = {}
    if job.server == "vllm":
        words = [
            f"vllm serve {name}", f"--port {port}", f"--dtype {model.dtype}", f"--max-model-len {length}",
            f"--kv-cache-memory-bytes {tokens * model.kv_token_bytes}", "--enable-prefix-caching", "--enforce-eager",
        ]  # fmt: skip
    else:
        fractions["sglang"] = _fraction(model, host, tokens, before_bytes)
        words = [
            "SGLANG_USE_CPU_ENGINE=1 python -m sglang.launch_server", f"--model-path {name}", f"--port {port}",
            f"--dtype {model.dtype}", f"--context-length {length}", "--device cpu",
            "--attention-backend torch_native", "--sampling-backend pytorch", "--disable-overlap-schedule",
            "--sleep-on-idle",  # Without it a server that waits keeps a core busy.
            f"--mem-fraction-static {fractions['sglang']:.3f}", f"--max-total-tokens {tokens}",
        ]  # fmt: skip
    words += role_flags(job.server, role, model)
    return Server(role, host.name, order, {job.server: " ".join(words)}, fractions, {job.server: tokens}, needed)


def _fraction(model: Model, host: Device, tokens: int, before_bytes: int) -> float:
    """Return SGLang's share of what it finds free: for weights and KV, rounded up to 0.001, and the drift."""
    free = host.free_bytes if host.free_bytes is not None else host.total_bytes or 0
    free -= before_bytes + PROCESS_BYTES["sglang"]
    static = model.weight_bytes + tokens * model.kv_token_bytes
    return min(0.999, math.ceil(1000 * static / free) / 1000 + DRIFT_SHARE) if free > 0 else 0.999
