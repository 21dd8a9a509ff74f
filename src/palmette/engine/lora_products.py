"""LoRA layers in a tick: the adapter's product is added to the base's in place, in two operations instead of five."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import sys
from typing import Any

import torch


def is_lora_layer(module: torch.nn.Module) -> bool:
    """Return whether this is a linear layer with LoRA adapters that runs PEFT's own code."""
    if "peft" not in sys.modules:
        return False
    from peft.tuners.lora import Linear

    return type(module) is Linear


def plain_adapter(layer: Any) -> str | None:
    """Return the name of the one plain adapter without biases that the layer adds to its base; None if it is not so."""
    names = layer.active_adapters
    name: str | None = names[0] if len(names) == 1 else None
    if name not in layer.lora_A or name in layer.lora_variant or layer.disable_adapters or layer.merged:
        return None
    return None if layer.lora_A[name].bias is not None or layer.lora_B[name].bias is not None else name


def fast_adapted(layer: Any, values: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
    """Return what the layer returns, but for rounding, with one plain adapter added in place.

    Everything else (several adapters, none, dropout, variants of LoRA, recorded gradients) is left to the layer's own
    code.
    """
    name = None if others or named or layer.training or torch.is_grad_enabled() else plain_adapter(layer)
    if name is None:
        own: torch.Tensor = type(layer).forward(layer, values, *others, **named)
        return own
    down, up = layer.lora_A[name], layer.lora_B[name]
    product: torch.Tensor = layer.base_layer(values)
    if not values.dtype == down.weight.dtype == product.dtype:
        return type(layer).forward(layer, values)  # type: ignore[no-any-return]
    low = torch.mm(values.reshape(-1, values.shape[-1]), down.weight.t())
    product.view(-1, product.shape[-1]).addmm_(low, up.weight.t(), alpha=layer.scaling[name])
    return product
