"""What a model weighs: its parameters by kind and its KV bytes a token, from the numbers of its config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from palmette.errors import BackendError
from palmette.planner.models.families import FAMILIES
from palmette.planner.models.heads import head_tensors
from palmette.planner.models.notation import Family
from palmette.planner.models.stored import Stored, read_stored
from palmette.planner.models.tensors import Decoder, KvLayers, Numbers, Tensor, class_defaults, read_decoder, tensors_of
from palmette.planner.models.towers import TEXT_FAMILIES, TOWERS
from palmette.settings import LORA_TARGETS

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOAT_BYTES = DTYPE_BYTES["float32"]
ENCODERS = ("bert", "roberta", "xlm-roberta", "mpnet")
_ROUTERS = ("mlp.gate", "router", "gate.wg")


@dataclass(frozen=True)
class Linear:
    """Equal matrices: linear layers of so many layers or, with `experts`, one for each expert of each of them."""

    name: str
    count: int
    inputs: int
    outputs: int
    experts: int = 0

    @property
    def parameters(self) -> int:
        """Parameters of all of them, without biases."""
        return self.count * max(1, self.experts) * self.inputs * self.outputs


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
    """Width of the feed-forward that a token passes: of all its experts together."""
    vocabulary: int
    positions: int | None
    tied: bool
    dtype: str
    outputs: int
    """Numbers that the model returns for each token: the vocabulary, a classifier's labels, or the hidden size."""
    parts: Mapping[str, int] = field(default_factory=dict)
    kv: tuple[KvLayers, ...] = ()
    linear: tuple[Linear, ...] = ()
    """The matrices of its layers, except routers."""
    norms: int = 2
    """Norms of a layer, beside those of queries and keys."""
    norms_heads: bool = False
    """Whether a layer normalizes its queries and keys."""
    is_latent: bool = False
    """Whether KV caches hold one latent vector for all heads."""
    stored: Stored | None = None
    """How the checkpoint is quantized, None where its weights are numbers of its dtype."""
    architecture: str = ""
    """The class that the config names."""
    counted: str = ""
    """How parameters were counted, where not by formula."""

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
    def norms_in_float32(self) -> bool:
        """Whether norms also scale in float32, before they round to the dtype of the weights."""
        return "gemma" in self.family

    @property
    def is_sparse(self) -> bool:
        """Whether it has experts."""
        return any(linear.experts for linear in self.linear)

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights: as the checkpoint stores them if it is quantized, else in one dtype."""
        size = self.parameters * DTYPE_BYTES[dtype]
        if self.stored is None:
            return size
        return size + sum(
            max(1, own.experts) * own.count * self.stored.matrix_bytes(own.inputs, own.outputs)
            - own.parameters * DTYPE_BYTES[dtype]
            for own in self.linear
            if self.stored.includes(own.name, is_expert=own.experts > 0)
        )

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of one token's KV in all layers, those with a sliding window included."""
        return sum(part.layers * part.numbers for part in self.kv) * DTYPE_BYTES[dtype]

    def kv_path_bytes(self, tokens: int, dtype: str, ahead_tokens: int = 0) -> int:
        """Bytes of the KV of one path; a layer with a window holds that and so many tokens ahead of it at most."""
        return DTYPE_BYTES[dtype] * sum(
            part.layers * part.numbers * (tokens if part.window is None else min(tokens, part.window + ahead_tokens))
            for part in self.kv
        )

    def lora_layers(self, targets: Sequence[str] = LORA_TARGETS) -> list[Linear]:
        """Return the linear layers that LoRA adapts: those whose own name is among the targets; no experts.

        All targets together stand for all linear layers, whatever their names.
        """
        has_all = tuple(targets) == LORA_TARGETS
        return [own for own in self.linear if not own.experts and (has_all or own.name.rpartition(".")[2] in targets)]

    @property
    def largest_weight(self) -> int:
        """Parameters of the largest tensor."""
        return max(self.vocabulary * self.hidden, *(own.parameters // own.count for own in self.linear), 0)

    def lora_parameters(self, rank: int, targets: Sequence[str] = LORA_TARGETS) -> int:
        """Return the parameters of LoRA's two low-rank matrices on each target of each layer."""
        return sum(own.count * rank * (own.inputs + own.outputs) for own in self.lora_layers(targets))


def read_shape(name: str, values: Mapping[str, Any], *, as_encoder: bool = False) -> ModelShape:
    """Return the shape that the values of a config.json describe. `as_encoder` counts no head, as for an embedder.

    Raises BackendError where the family is not declared or a number is missing.
    """
    text = values.get("text_config")
    whole = str(values.get("model_type"))
    if isinstance(text, Mapping):
        tied = {key: value for key, value in values.items() if key == "tie_word_embeddings"}
        values = {**values, **text, **tied}  # Whether the head is the embedding, the whole model says.
    family = TEXT_FAMILIES.get(str(values.get("model_type")), str(values.get("model_type")))
    declared, has_tower = FAMILIES.get(family), isinstance(values.get("vision_config"), Mapping)
    if (declared is None and family not in ENCODERS) or (has_tower and whole not in TOWERS):
        raise UnknownFamilyError(
            f"the memory of {name} cannot be planned by formula: its model_type is {whole!r}, and sizes are known for "
            f"{', '.join((*FAMILIES, *TOWERS, *ENCODERS))}"
        )
    try:
        if declared is None:
            return _encoder(name, family, values)
        shape = _decoder(name, family, declared, values, as_encoder)
        return _with_tower(shape, whole, values) if has_tower else shape
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise BackendError(f"the memory of {name} cannot be planned: its config.json has no usable {error}") from error


class UnknownFamilyError(BackendError):
    """A model_type that no declaration describes."""


def _decoder(name: str, family: str, declared: Family, values: Mapping[str, Any], as_encoder: bool) -> ModelShape:
    decoder = read_decoder(declared, values, class_defaults()[family])
    numbers = decoder.numbers
    head, outputs = head_tensors(declared.head, values, numbers, as_encoder=as_encoder)
    names = [tensor.name for tensor in next(iter(decoder.layers.values())) if tensor.name.endswith(".weight")]
    parts = _parts(decoder)
    parts["head"] = sum(tensor.parameters for tensor in head)
    return ModelShape(
        name, family, numbers["n"], numbers["h"], numbers["a"], numbers["g"], numbers["d"],
        _active_width(declared, decoder), numbers["V"], numbers["P"] or None, bool(numbers["t"]), dtype_of(values),
        outputs, parts, decoder.kv, _linear(decoder),
        norms=sum("norm" in own and "attn." not in own for own in names),
        norms_heads=any(own.endswith(("q_norm.weight", "query_layernorm.weight")) for own in names),
        is_latent=declared.kv != "2*k",
        stored=read_stored(values),
        architecture=str((values.get("architectures") or [""])[0]),
    )  # fmt: skip


def _parts(decoder: Decoder) -> dict[str, int]:
    """Return the parameters of a decoder by kind, without its head."""
    parts = {"embedding": 0, "attention": 0, "mlp": 0, "norms": 0}
    for count, tensors in [(1, decoder.outside), *decoder.counted()]:
        for tensor in tensors:
            parts[_kind(tensor, in_layer=tensors is not decoder.outside)] += count * tensor.parameters
    return parts


def _kind(tensor: Tensor, *, in_layer: bool) -> str:
    if "norm" in tensor.name or "ln_" in tensor.name:
        return "norms"
    if not in_layer:
        return "embedding"
    return "attention" if "attn" in tensor.name or "attention" in tensor.name else "mlp"


def _linear(decoder: Decoder) -> tuple[Linear, ...]:
    """Return the matrices of the layers. A matrix for all experts has those as its first size."""
    found = []
    for count, tensors in decoder.counted():
        for tensor in tensors:
            name = tensor.name.removesuffix(".weight")
            is_part = not tensor.name.endswith("bias") and not name.endswith(_ROUTERS)
            if len(tensor.sizes) == 2 and tensor.name.endswith(".weight") and is_part:
                found.append(Linear(name, count, tensor.sizes[1], tensor.sizes[0]))
            elif len(tensor.sizes) == 3 and is_part:
                experts, outputs, inputs = tensor.sizes
                found.append(Linear(name, count, inputs, outputs, experts))
    return tuple(found)


def _active_width(declared: Family, decoder: Decoder) -> int:
    """Return the width of the feed-forward that a token passes: the widest of all layers."""
    numbers = decoder.numbers
    widths = (
        [numbers["w"] if declared.dense.startswith("feed_forward") else numbers["i"]] if False in decoder.sparse else []
    )
    if True in decoder.sparse:
        expert = numbers["m"] if "2*m" in declared.sparse else numbers["i"]
        widths.append(numbers["x"] * expert + (numbers["s"] if "s" in declared.sizes else 0))
    return max(widths)


def _with_tower(shape: ModelShape, whole: str, values: Mapping[str, Any]) -> ModelShape:
    """Return the shape with the parameters of its vision tower."""
    count = sum(many * tensor.parameters for many, tensor in tower_tensors(whole, values, shape.hidden))
    return replace(shape, parts={**shape.parts, "vision": count})


def tower_tensors(whole: str, values: Mapping[str, Any], hidden: int) -> list[tuple[int, Tensor]]:
    """Return the tensors of a model's vision tower, each with how many layers have it."""
    tower = TOWERS[whole]
    own = {**values["vision_config"], "text_hidden": hidden}
    own |= {key: values[key] for key in ("spatial_merge_size", "multimodal_projector_bias") if key in values}
    own = {key: len(value) if isinstance(value, list) else value for key, value in own.items()}
    numbers = Numbers({**tower.sizes, "H": "text_hidden"}, own)
    outside = [(1, tensor) for tensor in tensors_of(tower.outside, numbers)]
    return [*outside, *((numbers["n"], own) for own in tensors_of(tower.layer, numbers, f"{tower.layers}.{{}}."))]


def _encoder(name: str, family: str, values: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a BERT-like encoder, with the pooler that transformers' AutoModel adds."""
    own = {"P": "max_position_embeddings", "T": "type_vocab_size|2", "B": "relative_attention_num_buckets|32"}
    numbers = Numbers(own, values)
    hidden, layers, inner, heads = numbers["h"], numbers["n"], numbers["i"], numbers["a"]
    types = 0 if family == "mpnet" else numbers["T"]
    buckets = numbers["B"] * heads if family == "mpnet" else 0
    parts = {
        "embedding": (numbers["V"] + numbers["P"] + types) * hidden,
        "attention": layers * 4 * (hidden * hidden + hidden) + buckets,
        "mlp": layers * (2 * hidden * inner + inner + hidden),
        "norms": layers * 4 * hidden + 2 * hidden,
        "head": hidden * hidden + hidden,
    }
    return ModelShape(
        name, family, layers, hidden, heads, heads, hidden // heads, inner, numbers["V"], numbers["P"], False,
        dtype_of(values), hidden, parts, (KvLayers(layers, 2 * hidden),),
    )  # fmt: skip


def dtype_of(values: Mapping[str, Any]) -> str:
    """Return the dtype that the weights were published in; bfloat16 for one that cannot be planned."""
    name = str(values.get("dtype") or values.get("torch_dtype") or "float32").removeprefix("torch.")
    return name if name in DTYPE_BYTES else "bfloat16"
