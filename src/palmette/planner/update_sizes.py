"""What an update holds: gradients, optimizer state, activations and logits, as formulas of shapes."""

from dataclasses import replace

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.lines import Line, total
from palmette.planner.models.shape import DTYPE_BYTES, FLOAT_BYTES
from palmette.train.limits import BLOCK_BYTES, BLOCK_NUMBERS, CHUNK_BYTES
from palmette.units import count_of

BACKWARD_BYTES = 40 * 2**20
"""Code pages and scratch memory that the libraries load in the first backward pass, 8 to 14 MiB and once 30; and small
blocks of rollouts and samples that a training run leaves scattered over the heap, 10 to 25 MiB."""

IN_FLIGHT = "gradients in flight"
"""The holder of gradients that are not accumulated yet."""

_MASK_BYTES = 128
"""Bytes of a token in the masks of attention on a trie: one for each slot of its block."""

_SAMPLE_BYTES = 64
"""Bytes of a token in a batch of samples: ids, places, advantages, log-probabilities."""


def trained_parameters(model: Model, update: UpdateNeeds) -> int:
    """Return how many parameters an update changes."""
    if update.method == "full":
        return model.shape.parameters
    return model.shape.lora_parameters(update.lora_rank, update.lora_targets)


def optimizer_line(model: Model, update: UpdateNeeds) -> Line:
    """Return AdamW's two moments, which stay between updates; for narrow weights also what rounding takes.

    That is a float32 master of each weight, and a float32 buffer for the gradient of the largest one; state in host
    memory has them for all weights of a GPU. Moments in bfloat16 need no masters, but five buffers for a block of the
    largest weight.
    """
    count = trained_parameters(model, update)
    size = 2 * count * DTYPE_BYTES[update.optimizer_dtype]
    note = f"two moments of {count / 1e6:,.1f} M in {update.optimizer_dtype}"
    if update.optimizer_dtype == "bfloat16":
        size += 5 * min(BLOCK_NUMBERS, model.shape.largest_weight) * FLOAT_BYTES
    elif update.host_optimizer or (update.method == "full" and model.number_bytes < FLOAT_BYTES):
        size += (count + (model.shape.largest_weight if update.method == "full" else 0)) * FLOAT_BYTES
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
    lines = [Line("gradients", "gradients", count * each, note=f"{count / 1e6:,.1f} M x {each} bytes")]
    if "activations" in predicted:
        note = f"{count_of(update.batch_tokens, 'token')}, logits included"
        lines.append(Line("activations", "activations", 0, note=note))
    else:
        moments = [_at_the_head(model, update), _in_the_last_layer(model, update), _at_the_embedding(model, update)]
        lines += [line for line in max(moments, key=total) if line.bytes]
    lines = [
        replace(line, bytes=predicted[line.kind], basis="predicted") if line.kind in predicted else line
        for line in lines
    ]
    return [*lines, *_sharing_lines(model, update)]


def backward_line() -> Line:
    """Return what the libraries load when they first compute backward, and keep."""
    return Line("backward code", "runtime", BACKWARD_BYTES, "measured", note="libraries' pages, loaded when first used")


def _sharing_lines(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return what an update on a trie of samples holds beside an update on as many tokens in rows; nothing for rows.

    A trie has as many slots as a micro-batch may have tokens, and attention saves for each what it saves on rows. But
    any number of samples that are the same share their slots, and each has advantages and log-probabilities of its own.
    Depth first, keys and values of the slots above collect gradients in all layers; these slots are never more than one
    sequence. With gradient checkpointing nothing else would hold the keys and values.
    """
    if update.sharing == "off":
        return []
    size = update.update_tokens * _SAMPLE_BYTES + update.batch_tokens * _MASK_BYTES
    if update.sharing != "packed" and update.update_tokens > update.micro_batch_tokens:
        size += _path_bytes(model, update) * (2 if update.checkpointing else 1)
        size += 2 * update.longest_tokens * model.shape.kv_width * FLOAT_BYTES
    return [Line("shared prefixes", "activations", size, note="all samples' numbers, gradients of keys above")]


def _path_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return the keys and values of one whole sequence in all layers."""
    return update.longest_tokens * model.shape.layers * 2 * model.shape.kv_width * model.number_bytes


def read_lines(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return what a pass without gradients over one micro-batch holds: a layer's activations, or a chunk of logits.

    A layer's feed-forward holds four hidden states and three of the intermediate width; its attention two hidden
    states, queries, keys and values before and after their rotation, and on a trie queries and results once more, with
    a tile of scores. At the head there are all hidden states, those of the responses, and the logits of one chunk.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    forward = 4 * shape.hidden + 3 * shape.intermediate
    attention = 2 * shape.hidden + 2 * (shape.query_width + 2 * shape.kv_width)
    if update.sharing != "off":
        attention += 3 * shape.query_width
    inside = [_activations(model, update, tokens * number * max(forward, attention))]
    at_head = [_activations(model, update, 2 * tokens * number * shape.hidden), _chunk_line(model, update)]
    lines = max(inside, at_head, key=total)
    shared = _sharing_lines(model, update)
    return [replace(lines[0], note=count_of(tokens, "token")), *lines[1:], *shared]


def _at_the_head(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return what is held when the backward pass starts: everything that the layers saved, and a chunk of logits.

    Behind the last layer there are what the final norm saved, its output, the hidden states of the responses and their
    gradient.
    """
    tokens, hidden, number = update.batch_tokens, model.shape.hidden, model.number_bytes
    saved = model.shape.layers * (tokens * hidden * number if update.checkpointing else _layer_bytes(model, update))
    behind = tokens * hidden * (_norm_bytes(model, update) + (3 if number < FLOAT_BYTES else 2) * number)
    return [_activations(model, update, saved + behind), *_logits_and_head(model, update)]


def _in_the_last_layer(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return what is held in the backward pass of the last layer, when no other layer has freed anything yet.

    The most is held in its feed-forward: the gradients of product, up and gate once the product itself is freed, the
    residual's gradient twice, and one matrix's gradient before it is accumulated. LoRA in half
    precision has no product to free where down is frozen.
    """
    shape, tokens, number = model.shape, update.batch_tokens, model.number_bytes
    layer, boundary = _layer_bytes(model, update), tokens * shape.hidden * number
    saved = (shape.layers - 1) * boundary + layer if update.checkpointing else shape.layers * layer
    each = 2 * number * (shape.intermediate + shape.hidden)
    if update.method == "lora" and number < FLOAT_BYTES:
        each = 6 * shape.intermediate + 5 * shape.hidden
    if shape.norms_in_float32 and number < FLOAT_BYTES:
        each = max(each, 6 * FLOAT_BYTES * shape.hidden)  # A norm's input, its gradients and their products.
    matrix = shape.hidden * shape.intermediate * number if update.method == "full" else 0
    backward = tokens * each + matrix
    return [_activations(model, update, saved + backward), *(_head_gradient(model, update) if shape.tied else [])]


def _at_the_embedding(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the embedding's gradient before it is accumulated; with a tied head also the head's, and their sum."""
    if update.method == "lora":
        return []
    size = model.shape.vocabulary * model.shape.hidden * model.number_bytes
    copies = 3 if model.shape.tied else 1
    return [Line(IN_FLIGHT, "gradients", copies * size, note="the embedding's and the head's")]


def _layer_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return the activations that one layer saves for its backward pass.

    These are what its norms save; the inputs of its linear layers; queries, keys, values and the attention's output;
    gate, activated gate and up. Compared on fake tensors these are all, to the byte, but for masks.
    """
    shape, number = model.shape, model.number_bytes
    each = shape.norms * (shape.hidden * _norm_bytes(model, update) + FLOAT_BYTES)
    if shape.norms_heads:
        each += (shape.query_width + shape.kv_width) * _norm_bytes(model, update)
        each += (shape.heads + shape.kv_heads) * FLOAT_BYTES
    each += number * (2 * shape.query_width + 2 * shape.kv_width + 3 * shape.intermediate) + FLOAT_BYTES * shape.heads
    return update.batch_tokens * (each + _saved_input_bytes(model, update))


def _norm_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return what a norm saves of each number: itself in float32, and its normalized value where weights are trained.

    Norms compute in float32 whatever the dtype of the weights; most, but not Gemma's, round before they scale.
    """
    scaled = FLOAT_BYTES if model.shape.norms_in_float32 else model.number_bytes
    return FLOAT_BYTES + (scaled if update.method == "full" else 0)


def _saved_input_bytes(model: Model, update: UpdateNeeds) -> int:
    """Return what the linear layers of a layer save of a token's inputs, each input once.

    The attention's output is saved anyway. A frozen matrix saves nothing, an adapter the product of its first matrix.
    """
    shape, number = model.shape, model.number_bytes
    if update.method == "full":
        return number * (2 * shape.hidden + shape.intermediate)
    adapted = shape.lora_layers(update.lora_targets)
    ranks = sum(own.count for own in adapted) * update.lora_rank * number
    inputs = shape.hidden * _adapts(model, update, "attn", shape.hidden)
    inputs += shape.hidden * _adapts(model, update, "mlp", shape.hidden)
    inputs += shape.intermediate * _adapts(model, update, "mlp", shape.intermediate)
    return number * inputs + ranks // shape.layers


def _adapts(model: Model, update: UpdateNeeds, part: str, inputs: int) -> bool:
    """Return whether LoRA adapts a linear layer with so many inputs in this part of a layer, except output layers."""
    return any(
        part in own.name and own.inputs == inputs and not own.name.endswith("o_proj")
        for own in model.shape.lora_layers(update.lora_targets)
    )


def _activations(model: Model, update: UpdateNeeds, size: int) -> Line:
    """Return the line of all activations, with the batch itself and the rotations of its positions."""
    size += update.batch_tokens * (_SAMPLE_BYTES + 2 * model.shape.head_width * model.number_bytes)
    saved = "layers recomputed" if update.checkpointing else "all layers saved"
    return Line("activations", "activations", size, note=f"{count_of(update.batch_tokens, 'token')}, {saved}")


def _logits_and_head(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the logits of one chunk of tokens, which become their gradient in place, and the head's own gradient.

    With weights in a half type the chunk's gradient is also held in that type. It is still held when the next chunk's
    logits are computed in that type; or, with a trained head, while its product with hidden states is added.
    """
    number = model.number_bytes
    chunk, size = _chunk(model, update)
    head = _head_gradient(model, update)
    half = chunk * model.shape.vocabulary * number if number < FLOAT_BYTES else 0
    product = model.shape.vocabulary * model.shape.hidden * number if head and half else 0
    if half > product and chunk < update.batch_tokens:
        size += half
        head = [replace(line, bytes=line.bytes - product) for line in head]
    return [Line("logits", "logits", size + half, note=f"a chunk of {count_of(chunk, 'token')}"), *head]


def _chunk(model: Model, update: UpdateNeeds) -> tuple[int, int]:
    """Return the tokens of one chunk, and the bytes of its logits with the buffer of one block."""
    row = model.shape.vocabulary * FLOAT_BYTES
    chunk = min(max(1, CHUNK_BYTES // row), update.batch_tokens)
    return chunk, (chunk + min(chunk, max(1, BLOCK_BYTES // row))) * row


def _chunk_line(model: Model, update: UpdateNeeds) -> Line:
    """Return the logits of one chunk where no gradient is computed; narrow ones are held beside their float32 copy."""
    chunk, size = _chunk(model, update)
    size += chunk * model.shape.vocabulary * model.number_bytes if model.number_bytes < FLOAT_BYTES else 0
    return Line("logits", "logits", size, note=f"a chunk of {count_of(chunk, 'token')}")


def _head_gradient(model: Model, update: UpdateNeeds) -> list[Line]:
    """Return the head's gradient before it is accumulated into that of earlier micro-batches.

    A head tied to the embedding keeps it until the backward pass has reached the embedding.
    """
    if update.method == "lora":
        return []
    parameters = model.shape.vocabulary * model.shape.hidden
    size = parameters * FLOAT_BYTES
    size += parameters * model.number_bytes if model.number_bytes < FLOAT_BYTES else 0
    return [Line(IN_FLIGHT, "gradients", size, note="the head's, before it is accumulated")]


def reference_lines(model: Model, *, same_device: bool) -> tuple[list[Line], list[Line]]:
    """Return what the frozen reference policy holds on the host always, and where it is read while it is read.

    There, two layers are held at a time: one computes while the next is copied. A reference on the device that trains
    is mapped from its file: pages of layers, embedding and head are read when they are needed, and dropped afterwards.
    """
    shape, number = model.shape, model.number_bytes
    two_layers = min(2, shape.layers) * shape.layer_parameters * number
    if same_device:
        around = (shape.parameters - shape.layers * shape.layer_parameters) * number
        note = "mapped from its file: two layers, embedding and head"
        return [], [Line("reference weights", "reference", two_layers + around, note=note)]
    host = [Line("reference weights", "reference", model.weight_bytes, note="frozen, read layer by layer")]
    return host, [Line("reference layers", "reference", two_layers, note="two layers at a time")]
