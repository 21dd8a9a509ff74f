"""What a model weighs: its parameters by kind and its KV bytes a token, from the numbers of its config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.config import LORA_TARGETS
from palmette.errors import BackendError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "mpnet")
FAMILIES = (*_GATED, *_ENCODERS)
_TIED_UNLESS_TOLD = ("gemma", "gemma2", "gemma3_text")
_FOUR_NORMS = ("gemma2", "gemma3_text")
_HEAD_NORMS = ("qwen3", "gemma3_text")


@dataclass(frozen=True)
class ModelShape:
    """Counts that hold for any dtype and any device. `parts` are parameters by kind, tied ones counted once."""

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
    """Numbers that come out for each token: the vocabulary, the labels of a classifier, or the hidden size."""
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(self.parts.values())

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: what is held of a model that is streamed layer by layer."""
        return sum(self.parts.get(kind, 0) for kind in ("attention", "mlp")) // max(1, self.layers)

    @property
    def norms_outputs(self) -> bool:
        """Tell whether attention and feed-forward have norms behind them too."""
        return self.family in _FOUR_NORMS

    @property
    def norms_heads(self) -> bool:
        """Tell whether queries and keys have norms of their own."""
        return self.family in _HEAD_NORMS

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights in one dtype."""
        return self.parameters * DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_width * DTYPE_BYTES[dtype]

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the linear maps of one layer by the name LoRA knows them by, as (inputs, outputs)."""
        across, down = self.heads * self.head_width, self.kv_heads * self.head_width
        return {
            "q_proj": (self.hidden, across),
            "k_proj": (self.hidden, down),
            "v_proj": (self.hidden, down),
            "o_proj": (across, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def lora_parameters(self, rank: int, targets: Sequence[str] = LORA_TARGETS) -> int:
        """Return the parameters of LoRA's two thin matrices on each target of each layer."""
        sizes = self.matrices()
        return self.layers * sum(rank * sum(sizes[target]) for target in targets)


def read_shape(name: str, values: Mapping[str, Any], *, as_encoder: bool = False) -> ModelShape:
    """Return the shape that a config.json tells. `as_encoder` counts no head: how an embedder is loaded.

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
        return (_gated if family in _GATED else _encoder)(name, family, values, as_encoder)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BackendError(f"the memory of {name} cannot be planned: its config.json has no usable {error}") from error


def _gated(name: str, family: str, values: Mapping[str, Any], as_encoder: bool) -> ModelShape:
    """Decoders with gated feed-forwards and RMS norms."""
    hidden, layers, vocabulary = (
        _number(values, "hidden_size"),
        _number(values, "num_hidden_layers"),
        _vocabulary(values),
    )
    heads, inner = _number(values, "num_attention_heads"), _number(values, "intermediate_size")
    kv_heads = _number(values, "num_key_value_heads", heads)
    width = _number(values, "head_dim", _default_width(family) or _width(hidden, heads))
    across, down = heads * width, kv_heads * width
    has_bias = bool(values.get("attention_bias", False))
    attention = hidden * (across + 2 * down) + across * hidden
    attention += (across + 2 * down) * (has_bias or family == "qwen2") + hidden * has_bias
    mlp = 3 * hidden * inner + (2 * inner + hidden) * bool(values.get("mlp_bias", False))
    norms = hidden * (4 if family in _FOUR_NORMS else 2) + 2 * width * (family in _HEAD_NORMS)
    tied = bool(values.get("tie_word_embeddings", family in _TIED_UNLESS_TOLD))
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
        _number(values, "max_position_embeddings", 0) or None, tied, _dtype(values), outputs, parts,
    )  # fmt: skip


def _head(values: Mapping[str, Any], hidden: int, vocabulary: int, tied: bool, as_encoder: bool) -> tuple[int, int]:
    """Return the head's parameters and how many numbers it gives for a token."""
    architecture = str((values.get("architectures") or ["ForCausalLM"])[0])
    labels = len(values.get("id2label") or ()) or _number(values, "num_labels", 2)
    if as_encoder or (architecture.endswith("Model") and "Reward" not in architecture):
        return 0, hidden
    if "TokenClassification" in architecture:
        return hidden * labels + labels, labels
    if "SequenceClassification" in architecture:
        return hidden * labels, labels
    if "ProcessRewardModel" in architecture:  # Qwen2.5-Math-PRM: two linear maps, the first as wide as the model.
        return hidden * hidden + hidden + hidden * labels + labels, labels
    return (0 if tied else vocabulary * hidden), vocabulary


def _encoder(name: str, family: str, values: Mapping[str, Any], as_encoder: bool) -> ModelShape:
    """Encoders of BERT's kind, with the pooler that transformers' AutoModel gives them."""
    hidden, layers, vocabulary = (
        _number(values, "hidden_size"),
        _number(values, "num_hidden_layers"),
        _vocabulary(values),
    )
    heads, inner, positions = (
        _number(values, key) for key in ("num_attention_heads", "intermediate_size", "max_position_embeddings")
    )
    types = 0 if family == "mpnet" else _number(values, "type_vocab_size", 2)
    buckets = _number(values, "relative_attention_num_buckets", 32) * heads if family == "mpnet" else 0
    parts = {
        "embedding": (vocabulary + positions + types) * hidden,
        "attention": layers * 4 * (hidden * hidden + hidden) + buckets,
        "mlp": layers * (2 * hidden * inner + inner + hidden),
        "norms": layers * 4 * hidden + 2 * hidden,
        "head": hidden * hidden + hidden,
    }
    return ModelShape(
        name, family, layers, hidden, heads, heads, _width(hidden, heads), inner, vocabulary,
        positions, False, _dtype(values), hidden, parts,
    )  # fmt: skip


_LARGEST = 10**9
"""No model has a size beyond; larger numbers are damage, and would make plans of nonsense."""


def _number(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a size from 1 on; the default, where there is one, for a key that is missing or null."""
    number = values[key] if default is None else values.get(key)
    if number is None and default is not None:
        return default
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _LARGEST:
        raise ValueError(f"'{key}'")
    return number


def _width(hidden: int, heads: int) -> int:
    if hidden < heads:
        raise ValueError("'num_attention_heads'")
    return hidden // heads


def _vocabulary(values: Mapping[str, Any]) -> int:
    return _number(values, "vocab_size")


def _default_width(family: str) -> int | None:
    return 256 if family.startswith("gemma") else None


def _dtype(values: Mapping[str, Any]) -> str:
    told = str(values.get("dtype") or values.get("torch_dtype") or "float32").removeprefix("torch.")
    return told if told in DTYPE_BYTES else "bfloat16"


_NUMBER_BYTES = {"bfloat16": 2, "int8": 1}
_FLOAT = 4
_FEWEST_OUTPUTS = 16
_LARGEST_ROTATION = 64


def quantized_bytes(shape: ModelShape, dtype: str, weights: str) -> int:
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


def quantized_pass_bytes(shape: ModelShape, tokens: int, weights: str) -> int:
    """Return what narrow layers hold in a pass beside the plain ones: inputs as they are rounded, sums before them."""
    if weights == "bfloat16":
        return tokens * 2 * (shape.hidden + shape.intermediate)
    return tokens * _FLOAT * (shape.hidden + 2 * shape.intermediate) if weights == "int8" else 0
