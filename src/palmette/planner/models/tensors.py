"""The tensors and KV caches of a model: a family's declaration filled in with the numbers of a config.json."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from palmette.planner.models.notation import BASE, Family

_LARGEST_SIZE = 10**9
"""No model has a larger size in its config.json; a larger number is a damaged file."""

_AT_LEAST_ONE = "Vhnagdi"
_SLIDING = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True)
class Tensor:
    """A parameter by its name in transformers, `{}` in the place of the layer's number."""

    name: str
    sizes: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return math.prod(self.sizes)

    @property
    def is_matrix(self) -> bool:
        """Whether it is the weight of a linear layer, or of one for each expert."""
        return len(self.sizes) >= 2


@dataclass(frozen=True)
class KvLayers:
    """So many layers with equal KV caches: numbers for each token, of the last `window` tokens if that is set."""

    layers: int
    numbers: int
    window: int | None = None


class Numbers:
    """The numbers that a family's declaration names by single letters, read from a config.json when asked for.

    Raises KeyError or ValueError with the quoted key as its text where there is no usable number.
    """

    def __init__(
        self, sizes: Mapping[str, str], values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._sizes = {**BASE, **sizes, "q": "a*d", "k": "g*d"}
        self._given = values
        # A key that is null has no default: transformers computes it from others.
        self._values = {**{key: value for key, value in (defaults or {}).items() if key not in values}, **values}
        self._known: dict[str, int] = {}

    def __getitem__(self, letter: str) -> int:
        if letter not in self._known:
            number = self._read(self._sizes[letter])
            if number < (1 if letter in _AT_LEAST_ONE else 0):
                raise ValueError(f"'{'num_attention_heads' if letter == 'd' else self._sizes[letter].split('|')[0]}'")
            self._known[letter] = number
        return self._known[letter]

    def _read(self, declared: str) -> int:
        """Return the first of the alternatives that is there: a key of the config.json before any default."""
        alternatives = declared.split("|")
        for key in alternatives:
            if len(key) > 1 and self._given.get(key) is not None:
                return self._number(key)
        for alternative in alternatives:
            guard, mark, expression = alternative.rpartition("?")
            if mark and not self.of(guard):
                continue
            key, equals, wanted = expression.partition("=")
            if len(key) == 1 or not re.fullmatch(r"\w+", key) or key.isdecimal():
                return self.of(expression)
            if self._values.get(key) is not None:
                return int(int(self._values[key]) == int(wanted)) if equals else self._number(key)
        raise KeyError(alternatives[0])

    def _number(self, key: str) -> int:
        number = self._values[key]
        if isinstance(number, bool) and self._sizes_may_be_flags(key):
            return int(number)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _LARGEST_SIZE:
            raise ValueError(f"'{key}'")
        return number

    def _sizes_may_be_flags(self, key: str) -> bool:
        return any(declared.startswith(f"{key}|") for declared in self._sizes.values())

    def of(self, expression: str) -> int:
        """Return the value of a sum, or of one difference, of products of numbers and letters."""
        if "-" in expression:
            left, right = expression.split("-")
            return abs(self.of(left) - self.of(right))
        return sum(math.prod(self._factor(factor) for factor in term.split("*")) for term in expression.split("+"))

    def _factor(self, factor: str) -> int:
        part, slash, whole = factor.partition("/")
        number = int(part) if part.isdecimal() else self[part]
        return number // self._factor(whole) if slash else number


def tensors_of(declared: str, numbers: Numbers, prefix: str = "") -> list[Tensor]:
    """Return the tensors that a text declares (see notation.py), their names after a prefix."""
    return [tensor for entry in declared.split(";") if entry for tensor in _tensors(entry.strip(), numbers, prefix)]


def _tensors(entry: str, numbers: Numbers, prefix: str) -> Iterator[Tensor]:
    guard, mark, rest = entry.rpartition("? ")
    if mark and bool(numbers.of(guard.removeprefix("!"))) == guard.startswith("!"):
        return
    name, sizes, *bias = rest.split()
    shape = tuple(numbers.of(size) for size in sizes.split(","))
    repeated = re.search(r"\[(\w)\]", name)
    for index in range(numbers[repeated[1]]) if repeated else range(1):
        own = prefix + name.removeprefix("=").replace(repeated[0] if repeated else "[]", str(index))
        yield Tensor(own if name.startswith("=") else f"{own}.weight", shape)
        if bias and numbers.of(bias[0]):
            yield Tensor(f"{own}.bias", shape[:1])


@dataclass(frozen=True)
class Decoder:
    """What a decoder is made of: tensors outside its layers, those of each kind of layer, and its KV caches."""

    numbers: Numbers
    outside: list[Tensor]
    sparse: list[bool]
    """For each layer, whether it has experts."""
    layers: dict[bool, list[Tensor]]
    """The tensors of a layer without experts, and of one with them."""
    kv: tuple[KvLayers, ...]

    def counted(self) -> list[tuple[int, list[Tensor]]]:
        """Return the tensors of each kind of layer with the number of these layers."""
        return [(self.sparse.count(kind), tensors) for kind, tensors in self.layers.items()]


@cache
def class_defaults() -> dict[str, dict[str, Any]]:
    """Return for each family what transformers takes for keys that a config.json does not have.

    Not for the hidden size and the number of layers, without which nothing is planned, nor for sliding windows: what
    has none in its config.json is counted in full.
    """
    text = files("palmette.planner.models").joinpath("defaults.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def read_decoder(family: Family, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Decoder:
    """Return what the config's values say of a family; the head is not among the tensors."""
    numbers = Numbers(family.sizes, values, defaults)
    values = {**defaults, **values}
    count = [numbers[letter] for letter in "hnVad"][1]
    sparse = [_is_sparse(family.which, values, numbers, layer) for layer in range(count)]
    layers = {
        kind: tensors_of(f"{family.layer};{declared}", numbers, f"{family.layers}.{{}}.")
        for kind, declared in ((False, family.dense), (True, family.sparse))
        if kind in sparse
    }
    windowed = sum(_is_windowed(family.window, values, layer) for layer in range(count)) if numbers["W"] else 0
    each = numbers.of(family.kv)
    kv = KvLayers(count - windowed, each), KvLayers(windowed, each, numbers["W"])
    outside = tensors_of(family.outside, numbers)
    return Decoder(numbers, outside, sparse, layers, tuple(part for part in kv if part.layers))


def _is_sparse(which: str, values: Mapping[str, Any], numbers: Numbers, layer: int) -> bool:
    """Return whether a layer has experts, by the rule that its family declares."""
    kinds = values.get("mlp_layer_types")
    if isinstance(kinds, list) and which == "first":
        return bool(kinds[layer] == "sparse")
    return _SPARSE[which](values, numbers, layer)


def _count(values: Mapping[str, Any], key: str, default: int) -> int:
    value = values.get(key)
    return default if value is None else int(value)


def _in_range(values: Mapping[str, Any], numbers: Numbers, layer: int) -> bool:
    last = _count(values, "moe_layer_end_index", -1)
    is_between = _count(values, "moe_layer_start_index", 1) <= layer <= (numbers["n"] - 1 if last == -1 else last)
    return is_between and (layer + 1) % _count(values, "moe_layer_interval", 1) == 0


def _at_steps(values: Mapping[str, Any], numbers: Numbers, layer: int) -> bool:
    is_listed = layer in (values.get("mlp_only_layers") or ())
    return not is_listed and numbers["E"] > 0 and (layer + 1) % _count(values, "decoder_sparse_step", 1) == 0


def _interleaved(values: Mapping[str, Any], numbers: Numbers, layer: int) -> bool:
    listed = values.get("moe_layers")
    if isinstance(listed, list):
        return layer in listed
    return (layer + 1) % _count(values, "interleave_moe_layer_step", 1) == 0


_SPARSE: dict[str, Callable[[Mapping[str, Any], Numbers, int], bool]] = {
    "none": lambda values, numbers, layer: False,
    "all": lambda values, numbers, layer: True,
    "first": lambda values, numbers, layer: layer >= _count(values, "first_k_dense_replace", 0),
    "step": _at_steps,
    "range": _in_range,
    "interleave": _interleaved,
}
RULE_KEYS = (
    "first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers", "moe_layer_start_index", "moe_layer_end_index",
    "moe_layer_interval", "interleave_moe_layer_step", "max_window_layers", "sliding_window_pattern",
    "num_labels",
)  # fmt: skip
"""What these rules read of a config.json beside a family's numbers."""


def _is_windowed(rule: str, values: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer sees a sliding window only, by the config or by the rule that its family declares."""
    kinds = values.get("layer_types")
    if isinstance(kinds, list):
        return kinds[layer] in _SLIDING
    if rule == "from":
        return layer >= _count(values, "max_window_layers", 28)
    kind, _, period = rule.partition(" ")
    told = values.get("sliding_window_pattern")
    length = len(told) if isinstance(told, str) else int(told or period or 1)
    return {"all": True, "every": (layer + 1) % length != 0, "after": layer % length != 0, "": False}[kind]
