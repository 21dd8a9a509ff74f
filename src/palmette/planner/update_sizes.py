"""What an update holds: gradients, optimizer state, activations and logits, as formulas of shapes."""

from dataclasses import replace

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.lines import Line, total
from palmette.planner.shape import DTYPE_BYTES
from palmette.train.limits import BLOCK_BYTES, CHUNK_BYTES

BACKWARD_BYTES = 24 * 2**20
"""What the libraries read of themselves and keep as scratch in a first backward pass: 8 to 14 MiB, once 30."""

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

    Formulas count the fullest of three moments of a backward pass: at the head, in the last layer, at the embedding.
    Predicted activations are all that is neither weight, gradient nor optimizer state, logits included.
    """
    count, each = trained_parameters(model, update), model.number_bytes if update.method == "full" else _FLOAT
    lines = [
        Line("gradients", "gradients", count * each, note=f"{count / 1e6:,.1f} M x {each} bytes"),
        Line("backward code", "runtime", BACKWARD_BYTES, "measured", note="libraries' pages, read when first used"),
    ]
    if "activations" in predicted:
        lines.append(Line("activations", "activations", 0, note=f"{update.batch_tokens:,} tokens, logits among them"))
    else:
        moments = [_at_the_head(model, update), _in_a_layer(model, update), _at_the_embedding(model, update)]
        lines += [line for line in max(moments, key=total) if line.bytes]
    return [
        replace(line, bytes=predicted[line.kind], known="predicted") if line.kind in predicted else line
        for line in lines
    ]


def _at_the_head(model: Model, update: UpdateNeeds) -> list[Line]:
    """Count all that the layers keep, and the logits.

    After the last layer there are the norm's input and what it scales, the responses' hidden states and their gradient.
    """
    boundary = update.batch_tokens * model.shape.hidden * model.number_bytes
    kept = model.shape.layers * (boundary if update.checkpointing else _layer_bytes(model, update))
    return [_activations(update, kept + 4 * boundary), _logits(model, update), *_in_flight(model, update)]


def _in_a_layer(model: Model, update: UpdateNeeds) -> list[Line]:
    """Count what is kept, and what the backward pass adds in the last layer, where nothing of others is gone yet.

    It is widest in the feed-forward: the gradients of product, up and gate when the product itself is gone, of the
    residual twice, and one matrix's own before it is added.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    layer, boundary = _layer_bytes(model, update), tokens * shape.hidden * number
    kept = (shape.layers - 1) * boundary + layer if update.checkpointing else shape.layers * layer
    matrix = shape.hidden * shape.intermediate * number if update.method == "full" else 0
    backward = tokens * number * 2 * (shape.intermediate + shape.hidden) + matrix
    return [_activations(update, kept + backward), *(_in_flight(model, update) if shape.tied else [])]


def _at_the_embedding(model: Model, update: UpdateNeeds) -> list[Line]:
    """Count the embedding's gradient before it is added; a tied head's stands beside it, and their sum."""
    if update.method == "lora":
        return []
    size = model.shape.vocabulary * model.shape.hidden * model.number_bytes
    copies = 3 if model.shape.tied else 1
    return [Line("gradients in flight", "gradients", copies * size, note="the embedding's and the head's")]


def _layer_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return what a layer keeps for its backward pass.

    The inputs of its norms; what these scale, where their weights are trained, and what they give to the next matrix;
    queries, keys, values, the attention's output; gate, gate activated, up, and their product.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    scaled = update.method == "full"
    across, down = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    each = (4 + 2 * scaled) * shape.hidden + 2 * across + 2 * down + 4 * shape.intermediate
    if shape.norms_outputs:
        each += (2 + 2 * scaled) * shape.hidden
    if shape.norms_heads:
        each += (1 + scaled) * (across + down)
    if update.method == "lora":  # A frozen matrix does not need its input; the attention's output is kept anyway.
        targets = set(update.lora_targets)
        each += update.lora_rank * len(targets)
        each -= shape.hidden * (targets.isdisjoint({"q_proj", "k_proj", "v_proj"}))
        each -= shape.hidden * (targets.isdisjoint({"gate_proj", "up_proj"}))
        each -= shape.intermediate * ("down_proj" not in targets)
    layer = tokens * number * each + tokens * _FLOAT * (shape.heads + 2)
    # Norms compute in float32 whatever the weights are.
    return layer + (tokens * 2 * shape.hidden * _FLOAT if number < _FLOAT else 0)


def _activations(update: UpdateNeeds, size: int) -> Line:
    how = "each layer computed again" if update.checkpointing else "all layers kept"
    return Line("activations", "activations", size, note=f"{update.batch_tokens:,} tokens, {how}")


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


def _in_flight(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the head's gradient before it is added to that of earlier micro-batches.

    Where the head is the embedding too, it waits until the backward pass has reached that end.
    """
    if update.method == "lora":
        return []
    one = model.shape.vocabulary * model.shape.hidden
    size = one * _FLOAT + (one * model.number_bytes if model.number_bytes < _FLOAT else 0)
    return [Line("gradients in flight", "gradients", size, note="the head's, before it is added")]


def reference_lines(model: Model, *, same_device: bool) -> tuple[list[Line], list[Line]]:
    """Return what the frozen reference holds on the host, and what streaming it takes on the device that trains.

    Two layers are on the device at a time: one computes while the next is copied.
    """
    host = [Line("reference weights", "reference", model.weight_bytes, note="frozen, read layer by layer")]
    if same_device:
        return host, []
    window = 2 * model.shape.layer_parameters * model.number_bytes
    return host, [Line("reference layers", "reference", window, note="two layers at a time")]
