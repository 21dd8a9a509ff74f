"""Memory fractions and start commands of SGLang and vLLM servers, each by its engine's own meaning of the fraction.

vLLM takes a share of the device's total memory, whatever others hold of it, and starts only where that much is free.
SGLang takes a share of what is free when it starts, for weights and KV together, and leaves the rest to activations: so
the order of starts matters. Both measure what is free after their own CUDA context is there.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from palmette.planner.devices import Device
from palmette.planner.job import Model, SearchNeeds
from palmette.planner.lines import Line, Server
from palmette.planner.search_sizes import CUDA_CONTEXT_BYTES
from palmette.units import count_of

ENGINES = ("sglang", "vllm")
POLICY_FRACTION = 0.90
REWARD_FRACTION = 0.90
REWARD_FRACTION_WITH_EMBEDDER = 0.85
PORTS = {"policy": 30000, "reward": 30020}
"""The ports that the ETS release uses."""

KV_BLOCK_TOKENS = 16
"""Tokens of one block of vLLM's KV cache on a GPU; SGLang's default page has one."""

COMMUNICATION_BYTES = 512 * 2**20
"""What NCCL and the servers' own all-reduce take of each GPU that a model is cut for. Not measured here."""

_GRAPH_SHARE = 0.01
"""CUDA graphs and workspaces, as a share of the device. Not measured here."""


@dataclass(frozen=True)
class ServerShare:
    """What one server may take, for each engine: its memory fraction, and the KV bytes that this fraction leaves."""

    fractions: dict[str, float]
    kv_bytes: dict[str, int]


def prefill_tokens(device: Device) -> int:
    """Return the tokens of one prefill pass: SGLang's default chunk for a device of that size; vLLM's is no larger."""
    return 2048 if (device.total_bytes or 0) < 35 * 2**30 else 8192


def activation_bytes(model: Model, device: Device) -> int:
    """Return what a server needs beside weights and KV: the activations of one prefill pass, and CUDA graphs."""
    shape = model.shape
    width = 4 * shape.hidden + 2 * (shape.query_width + 2 * shape.kv_width) + 3 * shape.intermediate
    return prefill_tokens(device) * width * model.number_bytes + int((device.total_bytes or 0) * _GRAPH_SHARE)


def one_question_fractions(model: Model, device: Device, search: SearchNeeds, before_bytes: int) -> dict[str, float]:
    """Return fractions for a server's weights and the KV of one question's branches.

    That KV is at most a tenth of the device, but always holds one whole branch.
    """
    token, device_bytes = model.kv_token_bytes, device.total_bytes or 0
    kv = max(search.path_tokens * token, min(search.unshared_tokens * token, device_bytes // 10))
    return _fractions(model, device, model.weight_bytes + kv, before_bytes)


def least_server_bytes(model: Model, device: Device, least_kv_bytes: int) -> int:
    """Return the least that a server works with, and 0.01 of the device since its fraction may be rounded down."""
    beside = context_bytes(model) + activation_bytes(model, device)
    return model.weight_bytes + least_kv_bytes + beside + math.ceil((device.total_bytes or 0) / 100)


def server_share(
    model: Model,
    device: Device,
    *,
    wanted: Mapping[str, float],
    least_kv_bytes: int,
    limit_bytes: int,
    before_bytes: int = 0,
    after_bytes: int = 0,
) -> ServerShare:
    """Return the fractions of a server that starts when `before_bytes` are taken and must leave `after_bytes` free.

    The wanted fraction is lowered, in steps of 0.01, until weights, KV, activations, context and neighbors are within
    the limit. It is raised only where the least KV does not fit into it but does fit into the limit.
    """
    activations = activation_bytes(model, device)
    least = _fractions(model, device, model.weight_bytes + least_kv_bytes, before_bytes)
    most_bytes = limit_bytes - before_bytes - after_bytes - context_bytes(model) - activations
    most = _fractions(model, device, most_bytes, before_bytes, round_down=True)
    fractions = {engine: min(most[engine], max(wanted[engine], least[engine])) for engine in ENGINES}
    # In hundredths, so that a product of floats cannot add a byte.
    shares = {engine: round(100 * fraction) for engine, fraction in fractions.items()}
    requested = -(-shares["vllm"] * (device.total_bytes or 0) // 100)
    return ServerShare(
        fractions,
        {
            "sglang": shares["sglang"] * free_at_start(model, device, before_bytes) // 100 - model.weight_bytes,
            "vllm": requested - activations - model.weight_bytes,
        },
    )


def free_at_start(model: Model, device: Device, before_bytes: int) -> int:
    """Return what a server finds free: not what others hold, nor what this run allocated before, nor its own context.

    Others are processes that are no part of the run: on a detected device, what is not free of it now.
    """
    free = device.free_bytes if device.free_bytes is not None else device.total_bytes or 0
    return max(0, free - before_bytes - context_bytes(model))


def _fractions(
    model: Model, device: Device, static_bytes: int, before_bytes: int, *, round_down: bool = False
) -> dict[str, float]:
    """Return each engine's fraction for so many bytes of weights and KV, rounded to 0.01.

    SGLang's is a share of what is free when it starts. vLLM's is a share of the whole device and also covers its
    activations, but not its CUDA context.
    """
    shares = {
        "sglang": (static_bytes, free_at_start(model, device, before_bytes)),
        "vllm": (static_bytes + activation_bytes(model, device), device.total_bytes or 0),
    }
    up = 0 if round_down else 1
    return {
        engine: max(0, (100 * part - up) // whole + up) / 100 if whole > 0 else 0.0
        for engine, (part, whole) in shares.items()
    }


def make_server(
    role: str,
    model: Model,
    devices: Sequence[Device],
    share: ServerShare,
    order: int,
    search: SearchNeeds,
    needed_tokens: int,
) -> Server:
    """Return how to start the server of one model on its devices; `order` is its place among the servers."""
    indices = ",".join(device.name.partition(":")[2] or "0" for device in devices)
    environment = f"CUDA_VISIBLE_DEVICES={indices}"
    count = len(devices)
    name, port, length = shlex.quote(model.name), PORTS[role], context_length(model, search)
    sglang = [
        environment, "python -m sglang.launch_server", f"--model-path {name}", f"--port {port}",
        f"--dtype {model.dtype}", f"--context-length {length}",
        f"--mem-fraction-static {share.fractions['sglang']:.2f}",
        *([f"--tp-size {count}"] if count > 1 else []),
        *role_flags("sglang", role, model),
    ]  # fmt: skip
    vllm = [
        environment, f"vllm serve {name}", f"--port {port}", f"--dtype {model.dtype}", f"--max-model-len {length}",
        f"--gpu-memory-utilization {share.fractions['vllm']:.2f}", "--enable-prefix-caching",
        *([f"--tensor-parallel-size {count}"] if count > 1 else []),
        *role_flags("vllm", role, model),
    ]  # fmt: skip
    tokens = {engine: max(0, size) // model.kv_token_bytes for engine, size in share.kv_bytes.items()}
    commands = {"sglang": " ".join(sglang), "vllm": " ".join(vllm)}
    return Server(
        role,
        ", ".join(device.name for device in devices),
        order,
        commands,
        dict(share.fractions),
        tokens,
        needed_tokens,
    )


def role_flags(engine: str, role: str, model: Model) -> list[str]:
    """Return the flags of a server whose model has a head that scores and writes no text."""
    is_classifier = role == "reward" and model.shape.outputs != model.shape.vocabulary
    return [{"sglang": "--is-embedding", "vllm": "--runner pooling"}[engine]] if is_classifier else []


def served_lines(role: str, model: Model, device: Device, kv: Line) -> list[Line]:
    """Return what a server holds in every phase: its process keeps the memory of its activations while it waits."""
    prefill = count_of(prefill_tokens(device), "token")
    return [
        served_weights(role, model),
        kv,
        Line(f"{role} CUDA context", "runtime", context_bytes(model), "declared", note="one process"),
        Line(
            f"{role} activations", "activations", activation_bytes(model, device),
            note=f"prefill of {prefill}, CUDA graphs",
        ),
    ]  # fmt: skip


def served_weights(role: str, model: Model) -> Line:
    """Return the weights of a server's model, or the shard of them that one GPU holds."""
    parameters = f"{model.shape.parameters / 1e9:.2f} B, {_stored_as(model)}"
    if model.shards > 1:
        parameters += f", 1 of {model.shards} shards"
    return Line(f"{role} weights", "weights", model.weight_bytes, note=parameters)


def _stored_as(model: Model) -> str:
    stored = model.shape.stored
    return model.dtype if stored is None else f"{stored.method} of {stored.bits} bits"


def context_bytes(model: Model) -> int:
    """Return what a server's process takes of each GPU beside the model: CUDA, and buffers to talk to other GPUs."""
    return CUDA_CONTEXT_BYTES + (COMMUNICATION_BYTES if model.shards > 1 else 0)


def context_length(model: Model, search: SearchNeeds) -> int:
    """Return the longest sequence that a server is asked for, at most what the model supports."""
    return min(search.path_tokens, model.shape.positions or search.path_tokens)
