"""What an update holds: gradients, optimizer state, activations and logits, as formulas of shapes."""

from dataclasses import replace

from palmette.memory.job import Model, UpdateNeeds
from palmette.memory.lines import Line
from palmette.memory.shape import DTYPE_BYTES

CHUNK_BYTES = 48 * 2**20
"""Logits of one chunk of the learner's head: 256 tokens at 49,152 words, where matrix products on a CPU reach their
full speed."""
BLOCK_BYTES = 2**20
"""Logits that stay in a CPU core's cache while they are exponentiated and summed, in a buffer beside the chunk's."""

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
    """Return what an update adds to weights and optimizer state: lines that were predicted, formulas for the others.

    Predicted activations are all that is neither weight, gradient nor optimizer state, logits included.
    """
    gradients, activations, logits = _gradients(model, update), _activations(model, update), _logits(model, update)
    passing = [activations, logits, *_in_flight(model, update, activations.bytes + logits.bytes)]
    if "activations" in predicted:
        passing = [Line("activations", "activations", 0, note=f"{activations.note}, logits among them")]
    return [
        replace(line, bytes=predicted[line.kind], known="predicted") if line.kind in predicted else line
        for line in [gradients, *passing]
    ]


def _gradients(model: Model, update: UpdateNeeds) -> Line:
    count = trained_parameters(model, update)
    each = model.number_bytes if update.method == "full" else _FLOAT
    return Line("gradients", "gradients", count * each, note=f"{count / 1e6:,.1f} M x {each} bytes")


def _activations(model: Model, update: UpdateNeeds) -> Line:
    """Count what a backward pass needs kept, and what it adds in the layer it is in.

    A layer keeps the inputs of both norms; what the norms scale, where their weights are trained, and what they give;
    queries, keys, values, the attention's output; gate, gate activated, up, and their product. With checkpointing only
    each layer's input is kept, and one layer is computed again. After the last layer: the norm's input and what it
    scales, the hidden states of the responses and their gradient.

    The backward pass of a layer is widest in its feed-forward: the gradients of product, up and gate when the product
    itself is gone, of the residual twice, and one matrix's own before it is added.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    trains_all = update.method == "full"
    across, down = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    normed = (4 if trains_all else 3) if shape.norms_outputs else 0
    wide = (6 if trains_all else 4) + normed
    each = wide * shape.hidden + 2 * across + 2 * down + 4 * shape.intermediate
    if shape.norms_heads:
        each += (2 if trains_all else 1) * (across + down)
    if not trains_all:
        each += update.lora_rank * len(update.lora_targets)
    layer = tokens * number * each + tokens * _FLOAT * (shape.heads + 2)
    if number < _FLOAT:  # Norms compute in float32 whatever the weights are.
        layer += tokens * 2 * shape.hidden * _FLOAT
    boundary = tokens * shape.hidden * number
    kept = shape.layers * boundary + layer if update.checkpointing else shape.layers * layer
    matrix = shape.hidden * shape.intermediate * number if trains_all else 0
    backward = tokens * number * 2 * (shape.intermediate + shape.hidden) + matrix
    how = "each layer computed again" if update.checkpointing else "all layers kept"
    return Line("activations", "activations", kept + 4 * boundary + backward, note=f"{tokens:,} tokens, {how}")


def _logits(model: Model, update: UpdateNeeds) -> Line:
    tokens, vocabulary = update.batch_tokens, model.shape.vocabulary
    row = vocabulary * _FLOAT
    if update.logits == "chunked":
        chunk = min(max(1, CHUNK_BYTES // row), tokens)
        # Weights of a half type take a narrow copy of the chunk's gradient.
        copies = 1 if model.number_bytes == _FLOAT else 1.5
        block = min(chunk, max(1, BLOCK_BYTES // row))
        return Line("logits", "logits", int((copies * chunk + block) * row), note=f"a chunk of {chunk:,} tokens")
    # Plain: logits, log-probabilities and the gradient of each; in place: no scaled copy of the logits.
    copies = 4 if update.logits == "plain" else 3
    return Line("logits", "logits", copies * tokens * row, note=f"{copies} x {tokens:,} tokens x {vocabulary:,}")


def _in_flight(model: Model, update: UpdateNeeds, beside_bytes: int) -> list[Line]:
    """Return gradients of embedding and head that are not yet added to those of earlier micro-batches.

    The head's comes first. Where it is the embedding too, it waits until the backward pass has reached that end; there,
    all else being gone, the embedding's own stands beside it, and their sum.
    """
    if update.method == "lora":
        return []
    one = model.shape.vocabulary * model.shape.hidden
    head = one * _FLOAT + (one * model.number_bytes if model.number_bytes < _FLOAT else 0)
    at_the_end = (3 if model.shape.tied else 1) * one * model.number_bytes - beside_bytes
    words = "head's, until the embedding's is there" if model.shape.tied else "head's, before it is added"
    return [Line("gradients in flight", "gradients", max(head, at_the_end), note=words)]


def reference_lines(model: Model, *, same_device: bool) -> tuple[list[Line], list[Line]]:
    """Return what the frozen reference holds on the host, and what streaming it takes on the device that trains.

    Two layers are on the device at a time: one computes while the next is copied.
    """
    host = [Line("reference weights", "reference", model.weight_bytes, note="frozen, read layer by layer")]
    if same_device:
        return host, []
    window = 2 * model.shape.layer_parameters * model.number_bytes
    return host, [Line("reference layers", "reference", window, note="two layers at a time")]
