"""What an update holds: gradients, optimizer state, activations and logits, as formulas of shapes."""

from palmette.memory.job import Model, UpdateNeeds
from palmette.memory.lines import Line
from palmette.memory.shape import DTYPE_BYTES

CHUNK_BYTES = 24 * 2**20
"""Logits of one chunk; the chunked head holds two of them."""

_FLOAT = 4


def trained_parameters(model: Model, update: UpdateNeeds) -> int:
    """Return how many parameters an update moves."""
    if update.method == "full":
        return model.shape.parameters
    return model.shape.lora_parameters(update.lora_rank, update.lora_targets)


def optimizer_line(model: Model, update: UpdateNeeds) -> Line:
    """Return AdamW's two moments; they stay between updates."""
    count = trained_parameters(model, update)
    return Line(
        "optimizer state", "optimizer", 2 * count * DTYPE_BYTES[update.optimizer_dtype],
        note=f"two moments of {count / 1e6:,.1f} M in {update.optimizer_dtype}",
    )  # fmt: skip


def adapter_line(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the weights that LoRA adds, in float32; none for full training."""
    if update.method == "full":
        return []
    count = trained_parameters(model, update)
    return [Line("LoRA weights", "weights", count * _FLOAT, note=f"rank {update.lora_rank}, {count / 1e6:,.2f} M")]


def update_lines(model: Model, update: UpdateNeeds, predicted: dict[str, int]) -> list[Line]:
    """Return what an update adds to weights and optimizer state: lines that were predicted, formulas for the others."""
    lines = [_gradients(model, update), _activations(model, update), _logits(model, update)]
    return [
        Line(line.holder, line.kind, predicted[line.kind], "predicted", note=line.note)
        if line.kind in predicted
        else line
        for line in lines
    ]


def _gradients(model: Model, update: UpdateNeeds) -> Line:
    count = trained_parameters(model, update)
    each = model.number_bytes if update.method == "full" else _FLOAT
    return Line("gradients", "gradients", count * each, note=f"{count / 1e6:,.1f} M x {each} bytes")


def _activations(model: Model, update: UpdateNeeds) -> Line:
    """Count what a backward pass needs kept, with one layer's gradients of it on top.

    A layer keeps both norms' inputs and outputs, queries, keys, values, the attention's output, gate, up, their
    product and the two residuals. With checkpointing only each layer's input is kept, and one layer is computed again.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    across, down = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    layer = tokens * number * (6 * shape.hidden + 2 * across + 2 * down + 4 * shape.intermediate)
    # RMS norms compute in float32 whatever the weights are.
    layer += tokens * 2 * shape.hidden * (_FLOAT if number < _FLOAT else 0)
    boundary = tokens * shape.hidden * number
    kept = shape.layers * boundary + layer if update.checkpointing else shape.layers * layer
    backward = layer // 2
    how = "each layer computed again" if update.checkpointing else "all layers kept"
    return Line("activations", "activations", kept + backward, note=f"{tokens:,} tokens, {how}")


def _logits(model: Model, update: UpdateNeeds) -> Line:
    tokens, vocabulary = update.batch_tokens, model.shape.vocabulary
    row = vocabulary * _FLOAT
    if update.logits == "chunked":
        chunk = max(1, CHUNK_BYTES // row)
        return Line(
            "logits", "logits", 2 * min(chunk, tokens) * row, note=f"two chunks of {min(chunk, tokens):,} tokens"
        )
    # Plain: logits, log-probabilities and the gradient of each; in place: no scaled copy of the logits.
    copies = 4 if update.logits == "plain" else 3
    return Line("logits", "logits", copies * tokens * row, note=f"{copies} x {tokens:,} tokens x {vocabulary:,}")


def reference_lines(model: Model, *, same_device: bool) -> tuple[list[Line], list[Line]]:
    """Return what the frozen reference holds on the host, and what streaming it takes on the device that trains.

    Two layers are on the device at a time: one computes while the next is copied.
    """
    host = [Line("reference weights", "reference", model.weight_bytes, note="frozen, read layer by layer")]
    if same_device:
        return host, []
    window = 2 * model.shape.layer_parameters * model.number_bytes
    return host, [Line("reference layers", "reference", window, note="two layers at a time")]
