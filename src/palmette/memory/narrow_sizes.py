"""What narrow linear layers weigh: those of a model that runs inside this process on a CPU."""

from palmette.memory.shape import DTYPE_BYTES, ModelShape

_NUMBER_BYTES = {"bfloat16": 2, "int8": 1}
_FLOAT = 4
_FEWEST_OUTPUTS = 16
_LARGEST_ROTATION = 64


def narrow_bytes(shape: ModelShape, dtype: str, weights: str) -> int:
    """Return the bytes of all weights; int8 has a scale for each output, and each layer its rotation.

    Embeddings, norms, biases and heads with a few outputs keep the dtype; a tied head gets weights of its own.
    """
    layers = linear_layers(shape)
    linear = sum(count * inputs * outputs for count, inputs, outputs in layers)
    own = shape.vocabulary * shape.hidden if shape.tied and shape.outputs == shape.vocabulary else 0
    size = (shape.parameters + own - linear) * DTYPE_BYTES[dtype] + linear * _NUMBER_BYTES[weights]
    if weights != "int8":
        return size
    return size + sum(count * (outputs * _FLOAT + rotation_bytes(inputs)) for count, inputs, outputs in layers)


def linear_layers(shape: ModelShape) -> list[tuple[int, int, int]]:
    """Return the linear layers that become narrow, as (how many, inputs, outputs)."""
    layers = [(shape.layers, inputs, outputs) for inputs, outputs in shape.matrices().values()]
    if shape.outputs >= _FEWEST_OUTPUTS and (shape.parts.get("head") or shape.outputs == shape.vocabulary):
        layers.append((1, shape.hidden, shape.outputs))
    elif shape.parts.get("head", 0) > shape.hidden**2:  # A process reward model: a layer as wide as it is, then labels.
        layers.append((1, shape.hidden, shape.hidden))
    return layers


def rotation_bytes(inputs: int) -> int:
    """Return the bytes of the matrix that turns so many inputs, block by block."""
    size = 1
    while size < _LARGEST_ROTATION and inputs % (2 * size) == 0:
        size *= 2
    return size * size * _FLOAT


def narrow_pass_bytes(shape: ModelShape, tokens: int, weights: str) -> int:
    """Return what narrow layers hold in a pass beside the plain ones: inputs as they are rounded, sums before them."""
    if weights == "bfloat16":
        return tokens * 2 * (shape.hidden + shape.intermediate)
    return tokens * _FLOAT * (shape.hidden + 2 * shape.intermediate) if weights == "int8" else 0
