"""What an update holds: gradients, optimizer state, activations and logits, as formulas of shapes."""

from dataclasses import replace

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.lines import Line, total
from palmette.planner.models.shape import DTYPE_BYTES, FLOAT_BYTES
from palmette.train.limits import BLOCK_BYTES, CHUNK_BYTES
from palmette.units import count_of

BACKWARD_BYTES = 24 * 2**20
"""Code pages and scratch memory that the libraries load in the first backward pass: 8 to 14 MiB, once 30."""


def trained_parameters(model: Model, update: UpdateNeeds) -> int:
    """Return how many parameters an update changes."""
    if update.method == "full":
        return model.shape.parameters
    return model.shape.lora_parameters(update.lora_rank, update.lora_targets)


def optimizer_line(model: Model, update: UpdateNeeds) -> Line:
    """Return AdamW's two moments, which stay between updates; for narrow weights also what rounding takes.

    That is a float32 master of each weight, and a float32 buffer for the gradient of the largest one.
    """
    count = trained_parameters(model, update)
    size = 2 * count * DTYPE_BYTES[update.optimizer_dtype]
    note = f"two moments of {count / 1e6:,.1f} M in {update.optimizer_dtype}"
    if update.method == "full" and model.number_bytes < FLOAT_BYTES:
        size += (count + model.shape.vocabulary * model.shape.hidden) * FLOAT_BYTES
        note += ", float32 masters of the weights"
    return Line("optimizer state", "optimizer", size, note=note)


def adapter_line(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the weights that LoRA adds, in float32; none for full training."""
    if update.method == "full":
        return []
    count = trained_parameters(model, update)
    note = f"rank {update.lora_rank}, {count / 1e6:,.2f} M"
    return [Line("LoRA weights", "weights", count * FLOAT_BYTES, note=note)]


def update_lines(model: Model, update: UpdateNeeds, predicted: dict[str, int]) -> list[Line]:
    """Return what an update adds to weights and optimizer state: predicted lines where given, formulas for the rest.

    The formulas count three moments of a backward pass, at the head, in the last layer and at the embedding, and
    return the one that holds the most. Predicted activations include everything that is neither weight, gradient nor
    optimizer state, logits among it.
    """
    count, each = trained_parameters(model, update), model.number_bytes if update.method == "full" else FLOAT_BYTES
    lines = [
        Line("gradients", "gradients", count * each, note=f"{count / 1e6:,.1f} M x {each} bytes"),
        Line("backward code", "runtime", BACKWARD_BYTES, "measured", note="libraries' pages, loaded when first used"),
    ]
    if "activations" in predicted:
        note = f"{count_of(update.batch_tokens, 'token')}, logits included"
        lines.append(Line("activations", "activations", 0, note=note))
    else:
        moments = [_at_the_head(model, update), _in_the_last_layer(model, update), _at_the_embedding(model, update)]
        lines += [line for line in max(moments, key=total) if line.bytes]
    return [
        replace(line, bytes=predicted[line.kind], basis="predicted") if line.kind in predicted else line
        for line in lines
    ]


def _at_the_head(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return what is held when the backward pass starts: everything that the layers saved, and a chunk of logits.

    Behind the last layer there are the final norm's input and its scaled input, the hidden states of the responses
    and their gradient.
    """
    boundary = update.batch_tokens * model.shape.hidden * model.number_bytes
    saved = model.shape.layers * (boundary if update.checkpointing else _layer_bytes(model, update))
    return [_activations(update, saved + 4 * boundary), _logits(model, update), *_head_gradient(model, update)]


def _in_the_last_layer(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return what is held in the backward pass of the last layer, when no other layer has freed anything yet.

    The most is held in its feed-forward: the gradients of product, up and gate once the product itself is freed, the
    residual's gradient twice, and one matrix's gradient before it is accumulated.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    layer, boundary = _layer_bytes(model, update), tokens * shape.hidden * number
    saved = (shape.layers - 1) * boundary + layer if update.checkpointing else shape.layers * layer
    matrix = shape.hidden * shape.intermediate * number if update.method == "full" else 0
    backward = tokens * number * 2 * (shape.intermediate + shape.hidden) + matrix
    return [_activations(update, saved + backward), *(_head_gradient(model, update) if shape.tied else [])]


def _at_the_embedding(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the embedding's gradient before it is accumulated; with a tied head also the head's, and their sum."""
    if update.method == "lora":
        return []
    size = model.shape.vocabulary * model.shape.hidden * model.number_bytes
    copies = 3 if model.shape.tied else 1
    return [Line("gradients in flight", "gradients", copies * size, note="the embedding's and the head's")]


def _layer_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return the activations that one layer saves for its backward pass.

    These are the inputs of its norms; the norms' scaled inputs, where their weights are trained; the norms' outputs;
    queries, keys, values and the attention's output; gate, activated gate, up, and their product.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    trains_norms = update.method == "full"
    each = (4 + 2 * trains_norms) * shape.hidden + 2 * shape.query_width + 2 * shape.kv_width + 4 * shape.intermediate
    if shape.norms_outputs:
        each += (2 + 2 * trains_norms) * shape.hidden
    if shape.norms_heads:
        each += (1 + trains_norms) * (shape.query_width + shape.kv_width)
    if update.method == "lora":  # A frozen matrix does not save its input; the attention's output is saved anyway.
        targets = set(update.lora_targets)
        each += update.lora_rank * len(targets)
        each -= shape.hidden * (targets.isdisjoint({"q_proj", "k_proj", "v_proj"}))
        each -= shape.hidden * (targets.isdisjoint({"gate_proj", "up_proj"}))
        each -= shape.intermediate * ("down_proj" not in targets)
    layer = tokens * number * each + tokens * FLOAT_BYTES * (shape.heads + 2)
    # Norms compute in float32 whatever the dtype of the weights.
    return layer + (tokens * 2 * shape.hidden * FLOAT_BYTES if number < FLOAT_BYTES else 0)


def _activations(update: UpdateNeeds, size: int) -> Line:
    saved = "layers recomputed" if update.checkpointing else "all layers saved"
    return Line("activations", "activations", size, note=f"{count_of(update.batch_tokens, 'token')}, {saved}")


def _logits(model: Model, update: UpdateNeeds) -> Line:
    """Return the logits of one chunk of tokens, which the learner turns into their gradient in place."""
    row = model.shape.vocabulary * FLOAT_BYTES
    chunk = min(max(1, CHUNK_BYTES // row), update.batch_tokens)
    # With weights in a half type, the gradient of the chunk is also held in that type.
    copies = 1 if model.number_bytes == FLOAT_BYTES else 1.5
    block = min(chunk, max(1, BLOCK_BYTES // row))
    note = f"a chunk of {count_of(chunk, 'token')}"
    return Line("logits", "logits", int((copies * chunk + block) * row), note=note)


def _head_gradient(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the head's gradient before it is accumulated into that of earlier micro-batches.

    A head tied to the embedding keeps it until the backward pass has reached the embedding.
    """
    if update.method == "lora":
        return []
    parameters = model.shape.vocabulary * model.shape.hidden
    size = parameters * FLOAT_BYTES
    size += parameters * model.number_bytes if model.number_bytes < FLOAT_BYTES else 0
    return [Line("gradients in flight", "gradients", size, note="the head's, before it is accumulated")]


def reference_lines(model: Model, *, same_device: bool) -> tuple[list[Line], list[Line]]:
    """Return what the frozen reference policy holds on the host, and what it holds on the device that trains.

    There, two layers are held at a time: one computes while the next is copied.
    """
    host = [Line("reference weights", "reference", model.weight_bytes, note="frozen, read layer by layer")]
    if same_device:
        return host, []
    two_layers = 2 * model.shape.layer_parameters * model.number_bytes
    return host, [Line("reference layers", "reference", two_layers, note="two layers at a time")]
