"""What a model weighs: its parameters by kind and its KV bytes a token, from the numbers of its config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.errors import BackendError
from palmette.settings import LORA_TARGETS

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOAT_BYTES = DTYPE_BYTES["float32"]
_DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "mpnet")
FAMILIES = (*_DECODERS, *_ENCODERS)
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text")
_FOUR_NORMS = ("gemma2", "gemma3_text")
_HEAD_NORMS = ("qwen3", "gemma3_text")
_LARGEST_SIZE = 10**9
"""No model has a larger size in its config.json; a larger number is a damaged file."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes that hold for any dtype and any device. `parts` are parameters by kind, tied ones counted once."""

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    positions: int | None
    tied: bool
    dtype: str
    outputs: int
    """Numbers that the model returns for each token: the vocabulary, a classifier's labels, or the hidden size."""
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(self.parts.values())

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: the unit in which a model is streamed from host memory."""
        return sum(self.parts.get(kind, 0) for kind in ("attention", "mlp")) // max(1, self.layers)

    @property
    def query_width(self) -> int:
        """Width of all query heads together, as of the attention's output."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, as of all value heads."""
        return self.kv_heads * self.head_width

    @property
    def norms_outputs(self) -> bool:
        """Whether a layer also normalizes the outputs of its attention and of its feed-forward."""
        return self.family in _FOUR_NORMS

    @property
    def norms_heads(self) -> bool:
        """Whether a layer normalizes its queries and keys."""
        return self.family in _HEAD_NORMS

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights in one dtype."""
        return self.parameters * DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_width * DTYPE_BYTES[dtype]

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the linear layers of one decoder layer by their LoRA target name, as (inputs, outputs)."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def lora_parameters(self, rank: int, targets: Sequence[str] = LORA_TARGETS) -> int:
        """Return the parameters of LoRA's two low-rank matrices on each target of each layer."""
        sizes = self.matrices()
        return self.layers * sum(rank * sum(sizes[target]) for target in targets)


def read_shape(name: str, values: Mapping[str, Any], *, as_encoder: bool = False) -> ModelShape:
    """Return the shape that the values of a config.json describe. `as_encoder` counts no head, as for an embedder.

    Raises BackendError where the family is not one of `FAMILIES` or a number is missing.
    """
    text = values.get("text_config")
    if isinstance(text, Mapping):
        values = {**values, **text}
    family = str(values.get("model_type"))
    if family not in FAMILIES:
        raise BackendError(
            f"the memory of {name} cannot be planned: its model_type is {family!r}, and sizes are known for "
            f"{', '.join(FAMILIES)}"
        )
    try:
        return (_decoder if family in _DECODERS else _encoder)(name, family, values, as_encoder)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BackendError(f"the memory of {name} cannot be planned: its config.json has no usable {error}") from error


def _decoder(name: str, family: str, values: Mapping[str, Any], as_encoder: bool) -> ModelShape:
    """Return the shape of a decoder with gated feed-forwards and RMS norms."""
    hidden, layers = _size(values, "hidden_size"), _size(values, "num_hidden_layers")
    vocabulary = _size(values, "vocab_size")
    heads, inner = _size(values, "num_attention_heads"), _size(values, "intermediate_size")
    kv_heads = _size(values, "num_key_value_heads", heads)
    width = _size(values, "head_dim", 256 if family.startswith("gemma") else _head_width(hidden, heads))
    query_width, kv_width = heads * width, kv_heads * width
    has_bias = bool(values.get("attention_bias", False))
    attention = hidden * (query_width + 2 * kv_width) + query_width * hidden
    attention += (query_width + 2 * kv_width) * (has_bias or family == "qwen2") + hidden * has_bias
    mlp = 3 * hidden * inner + (2 * inner + hidden) * bool(values.get("mlp_bias", False))
    norms = hidden * (4 if family in _FOUR_NORMS else 2) + 2 * width * (family in _HEAD_NORMS)
    tied = bool(values.get("tie_word_embeddings", family in _TIED_BY_DEFAULT))
    head, outputs = _head(values, hidden, vocabulary, tied, as_encoder)
    parts = {
        "embedding": vocabulary * hidden,
        "attention": layers * attention,
        "mlp": layers * mlp,
        "norms": layers * norms + hidden,
        "head": head,
    }
    return ModelShape(
        name, family, layers, hidden, heads, kv_heads, width, inner, vocabulary,
        _size(values, "max_position_embeddings", 0) or None, tied, _dtype(values), outputs, parts,
    )  # fmt: skip


def _head(values: Mapping[str, Any], hidden: int, vocabulary: int, tied: bool, as_encoder: bool) -> tuple[int, int]:
    """Return the head's parameters and how many numbers it returns for each token."""
    architecture = str((values.get("architectures") or ["ForCausalLM"])[0])
    labels = len(values.get("id2label") or ()) or _size(values, "num_labels", 2)
    if as_encoder or (architecture.endswith("Model") and "Reward" not in architecture):
        return 0, hidden
    if "TokenClassification" in architecture:
        return hidden * labels + labels, labels
    if "SequenceClassification" in architecture:
        return hidden * labels, labels
    if "ProcessRewardModel" in architecture:  # Qwen2.5-Math-PRM: two linear layers, the first as wide as the model.
        return hidden * hidden + hidden + hidden * labels + labels, labels
    return (0 if tied else vocabulary * hidden), vocabulary


def _encoder(name: str, family: str, values: Mapping[str, Any], as_encoder: bool) -> ModelShape:
    """Return the shape of a BERT-like encoder, with the pooler that transformers' AutoModel adds."""
    hidden, layers = _size(values, "hidden_size"), _size(values, "num_hidden_layers")
    vocabulary = _size(values, "vocab_size")
    heads, inner = _size(values, "num_attention_heads"), _size(values, "intermediate_size")
    positions = _size(values, "max_position_embeddings")
    types = 0 if family == "mpnet" else _size(values, "type_vocab_size", 2)
    buckets = _size(values, "relative_attention_num_buckets", 32) * heads if family == "mpnet" else 0
    parts = {
        "embedding": (vocabulary + positions + types) * hidden,
        "attention": layers * 4 * (hidden * hidden + hidden) + buckets,
        "mlp": layers * (2 * hidden * inner + inner + hidden),
        "norms": layers * 4 * hidden + 2 * hidden,
        "head": hidden * hidden + hidden,
    }
    return ModelShape(
        name, family, layers, hidden, heads, heads, _head_width(hidden, heads), inner, vocabulary,
        positions, False, _dtype(values), hidden, parts,
    )  # fmt: skip


def _size(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a size of at least 1, or the default for a key that is missing or null.

    Raises KeyError or ValueError with the quoted key as its text where there is no usable number.
    """
    number = values[key] if default is None else values.get(key)
    if number is None and default is not None:
        return default
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _LARGEST_SIZE:
        raise ValueError(f"'{key}'")
    return number


def _head_width(hidden: int, heads: int) -> int:
    if hidden < heads:
        raise ValueError("'num_attention_heads'")
    return hidden // heads


def _dtype(values: Mapping[str, Any]) -> str:
    """Return the dtype that the weights were published in; bfloat16 for one that cannot be planned."""
    name = str(values.get("dtype") or values.get("torch_dtype") or "float32").removeprefix("torch.")
    return name if name in DTYPE_BYTES else "bfloat16"


_QUANTIZED_BYTES = {"bfloat16": 2, "int8": 1}
_FEWEST_QUANTIZED_OUTPUTS = 16
_LARGEST_ROTATION = 64


def quantized_bytes(shape: ModelShape, dtype: str, quantize: str) -> int:
    """Return the bytes of all weights with linear layers quantized to bfloat16 or int8, as `zoo.quantize` does.

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
    """Return the linear layers that are quantized, as (how many, inputs, outputs)."""
    layers = [(shape.layers, inputs, outputs) for inputs, outputs in shape.matrices().values()]
    if shape.outputs >= _FEWEST_QUANTIZED_OUTPUTS and (shape.parts.get("head") or shape.outputs == shape.vocabulary):
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
