"""What linear layers take that are quantized inside this process (`policy.quantize`), as zoo.quantize does it."""

from palmette.planner.models.shape import DTYPE_BYTES, FLOAT_BYTES, ModelShape

_QUANTIZED_BYTES = {"bfloat16": 2, "int8": 1}
_FEWEST_OUTPUTS = 16
_LARGEST_ROTATION = 64


def quantized_bytes(shape: ModelShape, dtype: str, quantize: str) -> int:
    """Return the bytes of all weights with linear layers quantized to bfloat16 or int8.

    int8 adds a scale for each output and a rotation matrix for each layer. Embeddings, norms, biases and heads with
    few outputs keep the dtype. A head tied to the embedding becomes a quantized copy of its own.
    """
    layers = linear_layers(shape)
    linear = sum(count * inputs * outputs for count, inputs, outputs in layers)
    untied_head = shape.vocabulary * shape.hidden if shape.tied and shape.outputs == shape.vocabulary else 0
    size = (shape.parameters + untied_head - linear) * DTYPE_BYTES[dtype] + linear * _QUANTIZED_BYTES[quantize]
    if quantize != "int8":
        return size
    return size + sum(count * (outputs * FLOAT_BYTES + rotation_bytes(inputs)) for count, inputs, outputs in layers)


def linear_layers(shape: ModelShape) -> list[tuple[int, int, int]]:
    """Return the linear layers that are quantized, as (how many, inputs, outputs); experts are not."""
    layers = [
        (own.count, own.inputs, own.outputs)
        for own in shape.linear
        if not own.experts and own.outputs >= _FEWEST_OUTPUTS
    ]
    if shape.outputs >= _FEWEST_OUTPUTS and (shape.parts.get("head") or shape.outputs == shape.vocabulary):
        layers.append((1, shape.hidden, shape.outputs))
    elif shape.parts.get("head", 0) > shape.hidden**2:  # A process reward model: of its two layers the first is wide.
        layers.append((1, shape.hidden, shape.hidden))
    return layers


def rotation_bytes(inputs: int) -> int:
    """Return the bytes of the rotation matrix that int8 applies to so many inputs, block by block."""
    size = 1
    while size < _LARGEST_ROTATION and inputs % (2 * size) == 0:
        size *= 2
    return size * size * FLOAT_BYTES


def quantized_pass_bytes(shape: ModelShape, tokens: int, quantize: str) -> int:
    """Return what quantized layers add to a forward pass: rounded inputs, and for int8 the sums before scaling."""
    if quantize == "bfloat16":
        return tokens * 2 * (shape.hidden + shape.intermediate)
    return tokens * FLOAT_BYTES * (shape.hidden + 2 * shape.intermediate) if quantize == "int8" else 0
