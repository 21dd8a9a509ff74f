"""What one rank of a learner that FSDP2 shards holds: its shards, what it gathers, what it computes with."""

import math
from dataclasses import replace

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.lines import Line, total
from palmette.planner.models.shape import ModelShape
from palmette.planner.search_sizes import CUDA_CONTEXT_BYTES
from palmette.planner.servers import COMMUNICATION_BYTES
from palmette.planner.update_sizes import (
    IN_FLIGHT,
    adapter_line,
    backward_line,
    optimizer_line,
    read_lines,
    trained_parameters,
    update_lines,
)

GATHERED_LAYERS = 3
"""The layer that computes, the next one, gathered ahead, and the buffer in which that one arrives before FSDP2 copies
its parameters out of it."""

LAYER_GRADIENTS = 2
"""A layer's whole gradients, and the buffer from which those of the layer before are reduced."""


def sharded_parameters(shape: ModelShape, ranks: int) -> int:
    """Return the most parameters that a rank keeps: FSDP2 cuts each tensor by its first dimension, rounded up.

    Norms and biases are counted together: each may be rounded up by one number.
    """
    matrices = [(own.count * max(1, own.experts), own.outputs, own.inputs) for own in shape.linear]
    vocabulary = shape.vocabulary * shape.hidden
    for kind in ("embedding", "head"):
        if shape.parts.get(kind, 0) >= vocabulary:
            matrices.append((1, shape.vocabulary, shape.hidden))
    whole = sum(count * rows * columns for count, rows, columns in matrices)
    kept = sum(count * math.ceil(rows / ranks) * columns for count, rows, columns in matrices)
    return kept + math.ceil((shape.parameters - whole) / ranks)


def root_parameters(shape: ModelShape) -> int:
    """Return the parameters outside of all layers, which are gathered for a whole pass: embedding, head, last norm."""
    return shape.parts.get("embedding", 0) + shape.parts.get("head", 0) + shape.hidden


def rank_update(update: UpdateNeeds, ranks: int) -> UpdateNeeds:
    """Return what is left of an update for one rank: its share of the samples, in rows."""
    samples = math.ceil(update.questions * update.group_size / ranks)
    return replace(update, questions=samples, group_size=1, sharing="off")


def passes(update: UpdateNeeds, ranks: int) -> int:
    """Return the most passes of a rank in one update: all samples at their longest."""
    own = rank_update(update, ranks)
    rows = max(1, own.batch_tokens // own.longest_tokens)
    return math.ceil(own.questions / rows)


def state_lines(model: Model, update: UpdateNeeds, ranks: int) -> list[Line]:
    """Return what a rank keeps between updates: shards of weights and optimizer state, and its process."""
    share = _share(model.shape, ranks)
    lines = [Line("weight shard", "weights", _part(model.weight_bytes, share), note=f"1/{ranks} of {model.dtype}")]
    lines += [_sharded(line, 1 / ranks, ranks) for line in adapter_line(model, update)]
    lines.append(_sharded(optimizer_line(model, update), share, ranks))
    if ranks > 1:
        note = "one process; buffers to talk to other ranks"
        lines.append(Line("CUDA and NCCL", "runtime", CUDA_CONTEXT_BYTES + COMMUNICATION_BYTES, "declared", note=note))
    else:
        lines.append(Line("CUDA context", "runtime", CUDA_CONTEXT_BYTES, "declared", note="one process"))
    return lines


def gathered_lines(model: Model, ranks: int) -> list[Line]:
    """Return the whole weights that are there during a pass; none with one rank, which has them all."""
    if ranks == 1:
        return []
    count = min(GATHERED_LAYERS, model.shape.layers + 1)
    layers = count * layer_parameters(model.shape) * model.number_bytes
    root = root_parameters(model.shape) * model.number_bytes
    return [
        Line("gathered layers", "weights", layers, note="one computes, one is prefetched, one buffer"),
        Line("gathered root", "weights", root, note="embedding, head, last norm: for the whole pass"),
    ]


def pass_lines(model: Model, update: UpdateNeeds, ranks: int) -> list[Line]:
    """Return what a pass without gradients adds: gathered weights, a layer's activations or a chunk of logits."""
    return [*gathered_lines(model, ranks), *read_lines(model, rank_update(update, ranks))]


def rank_update_lines(model: Model, update: UpdateNeeds, ranks: int) -> list[Line]:
    """Return what an update adds to a rank's state: its gradients, what it gathers, activations and logits."""
    gradients, *computed = update_lines(model, rank_update(update, ranks), {})
    share = _share(model.shape, ranks) if update.method == "full" else 1 / ranks
    lines = [_sharded(gradients, share, ranks, "gradient shard"), *gathered_lines(model, ranks)]
    if ranks > 1 and update.method == "full":
        layer, root = layer_parameters(model.shape), root_parameters(model.shape)
        later = (LAYER_GRADIENTS * layer + root) * model.number_bytes
        at_head = total(line for line in computed if line.holder == IN_FLIGHT)
        note = "a layer's, two at a time, and the root's until the pass ends; or the head's own"
        lines.append(Line("whole gradients", "gradients", max(later, at_head), note=note))
        computed = [line for line in computed if line.holder != IN_FLIGHT]
    return [*lines, *computed, backward_line()]


def layer_parameters(shape: ModelShape) -> int:
    """Return the parameters of one layer with its norms."""
    return math.ceil((shape.parameters - root_parameters(shape)) / shape.layers)


def published_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return the bytes of the weights that an update changes, as they go to who generates: LoRA's are float32."""
    if update.method == "full":
        return model.weight_bytes
    return sum(line.bytes for line in adapter_line(model, update))


def gradient_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return the bytes of all gradients."""
    return trained_parameters(model, update) * (model.number_bytes if update.method == "full" else 4)


def _share(shape: ModelShape, ranks: int) -> float:
    """Return the part of the parameters that a rank keeps."""
    return sharded_parameters(shape, ranks) / shape.parameters


def _part(size: int, share: float) -> int:
    return math.ceil(size * share)


def _sharded(line: Line, share: float, ranks: int, holder: str | None = None) -> Line:
    note = f"1/{ranks}: {line.note}" if ranks > 1 else line.note
    return replace(line, holder=holder or line.holder, bytes=_part(line.bytes, share), note=note)
