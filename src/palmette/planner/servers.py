"""Start commands of SGLang and vLLM, each with its own meaning of its fraction.

vLLM takes a share of the device's whole memory, whatever others hold of it. SGLang takes a share of what is free when
it starts, for weights and KV together, and leaves the rest to activations: the order of starts matters.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from palmette.planner.devices import Device
from palmette.planner.job import Model, SearchNeeds
from palmette.planner.lines import Line, Server
from palmette.planner.search_sizes import CUDA_CONTEXT_BYTES

ENGINES = ("sglang", "vllm")
POLICY_FRACTION = 0.90
REWARD_FRACTION = 0.90
REWARD_FRACTION_WITH_EMBEDDER = 0.85
PORTS = {"policy": 30000, "reward": 30020}
"""Those of the ETS release."""

_GRAPH_SHARE = 0.01
"""CUDA graphs and workspaces, as a share of the device. Not measured here."""


@dataclass(frozen=True)
class Static:
    """What one server may take: each engine's fraction, and the bytes its KV cache gets by it."""

    fractions: dict[str, float]
    kv_bytes: dict[str, int]


def prefill_tokens(device: Device) -> int:
    """Return the tokens of one prefill pass: SGLang's default chunk for a device of that size; vLLM's is no larger."""
    return 2048 if (device.total_bytes or 0) < 35 * 2**30 else 8192


def transient_bytes(model: Model, device: Device) -> int:
    """Return what a server's forward passes need outside its weights and KV."""
    shape = model.shape
    wide = 4 * shape.hidden + 2 * (shape.heads + 2 * shape.kv_heads) * shape.head_width + 3 * shape.intermediate
    return prefill_tokens(device) * wide * model.number_bytes + int((device.total_bytes or 0) * _GRAPH_SHARE)


def small_shares(model: Model, device: Device, search: SearchNeeds, before_bytes: int) -> dict[str, float]:
    """Return the fractions that hold weights with the KV of one question's branches, at most a tenth of the device."""
    token, whole = model.kv_token_bytes, device.total_bytes or 0
    kv = max(search.path_tokens * token, min(search.unshared_tokens * token, whole // 10))
    return _fractions(model, device, model.weight_bytes + kv, before_bytes)


def least_room(model: Model, device: Device, least_kv_bytes: int) -> int:
    """Return what a server cannot do without, with the step of 0.01 that its fraction may be rounded down by."""
    outside = CUDA_CONTEXT_BYTES + transient_bytes(model, device)
    return model.weight_bytes + least_kv_bytes + outside + math.ceil((device.total_bytes or 0) / 100)


def static_share(
    model: Model,
    device: Device,
    *,
    wishes: Mapping[str, float],
    least_kv_bytes: int,
    limit_bytes: int,
    before_bytes: int = 0,
    after_bytes: int = 0,
) -> Static:
    """Return the fractions of a server that starts after `before_bytes` are taken and leaves `after_bytes` free.

    A wish is lowered, in steps of 0.01, until weights, KV, activations, context and neighbors are within the limit;
    it is raised only where the least KV would not fit into it and does fit into the limit.
    """
    most = limit_bytes - before_bytes - after_bytes - CUDA_CONTEXT_BYTES - transient_bytes(model, device)
    least = _fractions(model, device, model.weight_bytes + least_kv_bytes, before_bytes)
    highest = _fractions(model, device, most, before_bytes, down=True)
    fractions = {engine: min(highest[engine], max(wishes[engine], least[engine])) for engine in ENGINES}
    whole, outside = device.total_bytes or 0, CUDA_CONTEXT_BYTES + transient_bytes(model, device)
    return Static(
        fractions,
        {
            "sglang": int(fractions["sglang"] * (whole - before_bytes - CUDA_CONTEXT_BYTES)) - model.weight_bytes,
            "vllm": int(fractions["vllm"] * whole) - outside - model.weight_bytes,
        },
    )


def _fractions(
    model: Model, device: Device, static_bytes: int, before_bytes: int, *, down: bool = False
) -> dict[str, float]:
    """Return each engine's fraction for so many bytes of weights and KV, rounded to 0.01.

    SGLang's is of what is free when it starts. vLLM's is of the whole device, and what its process and its passes take
    counts in it.
    """
    whole = device.total_bytes or 0
    outside = CUDA_CONTEXT_BYTES + transient_bytes(model, device)
    free = whole - before_bytes - CUDA_CONTEXT_BYTES
    shares = {
        "sglang": static_bytes / free if free > 0 else 0.0,
        "vllm": (static_bytes + outside) / whole if whole else 0.0,
    }
    turn = math.floor if down else math.ceil
    return {engine: max(0.0, turn(round(share * 100, 6)) / 100) for engine, share in shares.items()}


def server(role: str, model: Model, device: Device, static: Static, order: int, search: SearchNeeds) -> Server:
    """Return how to start one model on one device."""
    index = device.name.partition(":")[2] or "0"
    where = f"CUDA_VISIBLE_DEVICES={index}"
    name, port, length = shlex.quote(model.name), PORTS[role], _context(model, search)
    scores = role == "reward"
    pooled = model.shape.outputs != model.shape.vocabulary
    sglang = [
        where, "python -m sglang.launch_server", f"--model-path {name}", f"--port {port}", f"--dtype {model.dtype}",
        f"--context-length {length}", f"--mem-fraction-static {static.fractions['sglang']:.2f}",
        *(["--is-embedding"] if scores and pooled else []),
    ]  # fmt: skip
    vllm = [
        where, f"vllm serve {name}", f"--port {port}", f"--dtype {model.dtype}", f"--max-model-len {length}",
        f"--gpu-memory-utilization {static.fractions['vllm']:.2f}", "--enable-prefix-caching",
        *(["--runner pooling"] if scores and pooled else []),
    ]  # fmt: skip
    tokens = {engine: max(0, size) // model.kv_token_bytes for engine, size in static.kv_bytes.items()}
    commands = {"sglang": " ".join(sglang), "vllm": " ".join(vllm)}
    return Server(role, device.name, order, commands, dict(static.fractions), tokens)


def served_lines(role: str, model: Model, device: Device, kv: Line) -> list[Line]:
    """Return what a server holds; what its passes have taken stays with its process when it waits."""
    resident = [
        Line(
            f"{role} weights",
            "weights",
            model.weight_bytes,
            note=f"{model.shape.parameters / 1e9:.2f} B, {model.dtype}",
        ),
        kv,
        Line(f"{role} CUDA context", "runtime", CUDA_CONTEXT_BYTES, "declared", note="one process"),
    ]
    passes = Line(
        f"{role} activations",
        "activations",
        transient_bytes(model, device),
        note=f"prefill of {prefill_tokens(device):,} tokens, CUDA graphs",
    )
    return [*resident, passes]


def _context(model: Model, search: SearchNeeds) -> int:
    """Return the longest sequence a server is asked for, never more than the model takes."""
    return min(search.path_tokens, model.shape.positions or search.path_tokens)
