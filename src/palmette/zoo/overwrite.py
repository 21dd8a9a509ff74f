"""Copies new weights over those of a loaded model, all of them or none."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from palmette.errors import BackendError
from palmette.zoo.folder import read_header, weight_files
from palmette.zoo.quantize import QuantizedLinear

_FLOATS = ("F64", "F32", "F16", "BF16")


class _NewWeight(NamedTuple):
    """A new weight, read only when it is copied."""

    shape: tuple[int, ...]
    is_float: bool
    read: Callable[[], torch.Tensor]


def overwrite(model: Any, source: Mapping[str, torch.Tensor] | str | Path) -> None:
    """Copy weights over the model's own, from a state dict or from a folder with safetensors.

    Names are those of the base model without adapters. Every weight must be given, of tied ones at least one. Raises
    BackendError or ConfigError before anything is written.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    given = _from_tensors(source) if isinstance(source, Mapping) else _from_folder(Path(source).expanduser())
    targets = dict(_targets(base, ""))
    chosen = {name: _choose(name, base, targets, given) for name in targets}
    for name in given:
        if name not in targets:
            raise BackendError(f"cannot update the weights: the model has no weight {name}")
    for name, weight in chosen.items():
        if weight.shape != tuple(targets[name].shape):
            raise BackendError(
                f"cannot update the weights: {name} is {list(weight.shape)}, in the model {list(targets[name].shape)}"
            )
        if not weight.is_float:
            raise BackendError(f"cannot update the weights: {name} does not hold floating-point numbers")
    with torch.inference_mode():  # Here both tensors made in inference mode and all others can be written.
        for name, target in targets.items():
            target.write(chosen[name].read())


class _Target(NamedTuple):
    """A weight of the model: the tensor or quantized layer that holds it, and how to write it."""

    holder: Any
    shape: torch.Size
    write: Callable[[torch.Tensor], Any]


def _targets(module: Any, prefix: str) -> Iterator[tuple[str, _Target]]:
    """Yield the weights of a module and of those inside it, by their names without adapters."""
    wrapped = getattr(module, "base_layer", None) or getattr(module, "original_module", None)
    if hasattr(type(module), "active_adapters") and wrapped is not None:
        yield from _targets(wrapped, prefix)
        return
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if isinstance(module, QuantizedLinear) and name in ("weight", "scale"):
            if name == "weight":
                yield prefix + name, _Target(module, tensor.shape, module.set_weight)
        elif tensor is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, _Target(tensor, tensor.shape, tensor.copy_)
    for name, child in module.named_children():
        yield from _targets(child, f"{prefix}{name}.")


def _choose(name: str, base: Any, targets: Mapping[str, _Target], given: Mapping[str, _NewWeight]) -> _NewWeight:
    """Return the new weight of this name, or else that of a weight tied to it. Raises BackendError without either."""
    if name in given:
        return given[name]
    tied = [other for other in given if other in targets and targets[other].holder is targets[name].holder]
    head = base.get_output_embeddings()
    if not tied and isinstance(targets[name].holder, QuantizedLinear) and targets[name].holder is head:
        # A quantized head is a copy of the embedding that it is tied to.
        embedding = base.get_input_embeddings().weight
        tied = [
            other
            for other in given
            if base.config.tie_word_embeddings and other in targets and targets[other].holder is embedding
        ]
    if not tied:
        raise BackendError(f"cannot update the weights: {name} is missing")
    return given[tied[0]]


def _from_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, _NewWeight]:
    return {
        name: _NewWeight(tuple(tensor.shape), tensor.is_floating_point(), tensor.detach)
        for name, tensor in tensors.items()
    }


def _from_folder(folder: Path) -> dict[str, _NewWeight]:
    weights = {}
    for path in weight_files(folder):
        header = read_header(path)
        for name, shape in header.shapes.items():
            weights[name] = _NewWeight(shape, header.dtypes[name] in _FLOATS, _reader(path, name))
    return weights


def _reader(path: Path, name: str) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        with safe_open(path, "pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    return read
