"""LoRA layers in a tick: the adapter's product is added to the base's in place, in two operations instead of five."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


def lora_layers(model: torch.nn.Module) -> list[Any]:
    """Return the model's linear layers with LoRA adapters that run PEFT's own code."""
    if "peft" not in sys.modules:
        return []
    from peft.tuners.lora import Linear

    return [module for module in model.modules() if type(module) is Linear and "forward" not in module.__dict__]


@contextmanager
def fast_adapters(layers: Sequence[Any]) -> Iterator[None]:
    """Let these layers add one plain adapter in place inside the block, where no gradients are recorded.

    Results differ from those of the layers' own code by rounding. Everything else (several adapters, none, dropout,
    variants of LoRA) is left to that code.
    """
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(layer: Any, values: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
    names = layer.active_adapters
    name = names[0] if len(names) == 1 else None
    if (
        others
        or named
        or name not in layer.lora_A
        or name in layer.lora_variant
        or layer.disable_adapters
        or layer.merged
        or layer.training
        or torch.is_grad_enabled()
    ):
        own: torch.Tensor = type(layer).forward(layer, values, *others, **named)
        return own
    down, up = layer.lora_A[name], layer.lora_B[name]
    product: torch.Tensor = layer.base_layer(values)
    if down.bias is not None or up.bias is not None or not values.dtype == down.weight.dtype == product.dtype:
        return type(layer).forward(layer, values)  # type: ignore[no-any-return]
    low = torch.mm(values.reshape(-1, values.shape[-1]), down.weight.t())
    product.view(-1, product.shape[-1]).addmm_(low, up.weight.t(), alpha=layer.scaling[name])
    return product
