"""New weights copied over those of a loaded model, all of them or none."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from palmette.errors import BackendError
from palmette.zoo.folder import read_header, weight_files
from palmette.zoo.quantize import QuantizedLinear

_FLOATS = ("F64", "F32", "F16", "BF16")


class _Offer(NamedTuple):
    """A tensor on offer, read when it is asked for."""

    shape: tuple[int, ...]
    is_float: bool
    read: Callable[[], torch.Tensor]


def overwrite(model: Any, source: Mapping[str, torch.Tensor] | str | Path) -> None:
    """Copy weights over the model's own, from a state dict or from a folder with safetensors.

    They are named as the base model names them without adapters, and all of them have to be there, tied ones once.
    Raises BackendError or ConfigError before anything is written.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    offers = _held(source) if isinstance(source, Mapping) else _stored(Path(source).expanduser())
    places = dict(_places(base, ""))
    taken = {name: _source_of(name, base, places, offers) for name in places}
    for name in offers:
        if name not in places:
            raise BackendError(f"cannot update the weights: the model has no place for {name}")
    for name, offer in taken.items():
        if offer.shape != tuple(places[name].shape):
            raise BackendError(
                f"cannot update the weights: {name} is {list(offer.shape)}, in the model {list(places[name].shape)}"
            )
        if not offer.is_float:
            raise BackendError(f"cannot update the weights: {name} does not hold floating-point numbers")
    with torch.inference_mode():  # Both kinds of tensors can be written there, those made in it and all others.
        for name, place in places.items():
            place.write(taken[name].read())


class _Place(NamedTuple):
    """Where a weight is kept."""

    holder: Any
    shape: torch.Size
    write: Callable[[torch.Tensor], Any]


def _places(module: Any, prefix: str) -> Iterator[tuple[str, _Place]]:
    """Yield the weights below a module, by the names they have without adapters."""
    under = getattr(module, "base_layer", None) or getattr(module, "original_module", None)
    if hasattr(type(module), "active_adapters") and under is not None:
        yield from _places(under, prefix)
        return
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if isinstance(module, QuantizedLinear) and name in ("weight", "scale"):
            if name == "weight":
                yield prefix + name, _Place(module, tensor.shape, module.store)
        elif tensor is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, _Place(tensor, tensor.shape, tensor.copy_)
    for name, child in module.named_children():
        yield from _places(child, f"{prefix}{name}.")


def _source_of(name: str, base: Any, places: Mapping[str, _Place], offers: Mapping[str, _Offer]) -> _Offer:
    """Return what is offered for a weight, or else for one that is tied to it."""
    if name in offers:
        return offers[name]
    tied = [other for other in offers if other in places and places[other].holder is places[name].holder]
    head = base.get_output_embeddings()
    if not tied and isinstance(places[name].holder, QuantizedLinear) and places[name].holder is head:
        # A narrow head holds numbers of its own; it is still the embedding, transposed.
        embedding = base.get_input_embeddings().weight
        tied = [
            other
            for other in offers
            if base.config.tie_word_embeddings and other in places and places[other].holder is embedding
        ]
    if not tied:
        raise BackendError(f"cannot update the weights: {name} is missing")
    return offers[tied[0]]


def _held(tensors: Mapping[str, torch.Tensor]) -> dict[str, _Offer]:
    return {
        name: _Offer(tuple(tensor.shape), tensor.is_floating_point(), tensor.detach) for name, tensor in tensors.items()
    }


def _stored(folder: Path) -> dict[str, _Offer]:
    offers = {}
    for path in weight_files(folder):
        header = read_header(path)
        for name, shape in header.shapes.items():
            offers[name] = _Offer(shape, header.dtypes[name] in _FLOATS, _reader(path, name))
    return offers


def _reader(path: Path, name: str) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        with safe_open(path, "pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    return read
