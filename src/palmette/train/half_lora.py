"""LoRA on models in half precision: the adapter's products in the model's dtype, added to the base's in place.

PEFT casts the inputs of each adapted layer to the float32 of the adapter, and scales and adds its product in passes of
their own over float32 copies. Here the adapter is rounded instead, as autocast would, and nothing is copied. Adapters
and their gradients stay float32.

Shapes: T tokens, I inputs, O outputs, R rank.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from palmette.engine.lora_products import is_lora_layer, plain_adapter

_HALF = (torch.bfloat16, torch.float16)


def add_in_half(model: Any) -> Any:
    """Let the LoRA layers whose base is in half precision compute as this module says; return the model."""
    for layer in model.modules():
        if is_lora_layer(layer) and layer.weight.dtype in _HALF:
            layer.forward = partial(_forward, layer)
    return model


def _forward(layer: Any, values: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
    """Return what the layer returns, but for rounding. What is no single plain adapter is left to its own code."""
    name = None if others or named or values.dtype not in _HALF else plain_adapter(layer)
    if name is None or not isinstance(layer.lora_dropout[name], torch.nn.Identity):
        own: torch.Tensor = type(layer).forward(layer, values, *others, **named)
        return own
    product = layer.base_layer(values)
    if product.dtype != values.dtype:
        return type(layer).forward(layer, values)  # type: ignore[no-any-return]
    down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
    added: torch.Tensor = _Added.apply(product, values, down, up, layer.scaling[name])  # type: ignore[no-untyped-call]
    return added


class _Added(torch.autograd.Function):
    """Adds `scale * values @ down^T @ up^T` to the product in place."""

    @staticmethod
    def forward(
        ctx: Any, product: torch.Tensor, values: torch.Tensor, down_RI: torch.Tensor, up_OR: torch.Tensor, scale: float
    ) -> torch.Tensor:
        low_TR = torch.mm(values.reshape(-1, values.shape[-1]), down_RI.to(values.dtype).t())
        product.view(-1, product.shape[-1]).addmm_(low_TR, up_OR.to(values.dtype).t(), alpha=scale)
        ctx.mark_dirty(product)
        ctx.save_for_backward(values, low_TR, down_RI, up_OR)
        ctx.scale = scale
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        values, low_TR, down_RI, up_OR = ctx.saved_tensors
        for_values, for_down, for_up = ctx.needs_input_grad[1:4]
        grad_TO, values_TI = grad.reshape(-1, grad.shape[-1]), values.reshape(-1, values.shape[-1])
        grad_low_TR = torch.mm(grad_TO, up_OR.to(grad.dtype)).mul_(ctx.scale)
        return (
            grad,
            torch.mm(grad_low_TR, down_RI.to(grad.dtype)).view_as(values) if for_values else None,
            torch.mm(grad_low_TR.t(), values_TI).to(down_RI.dtype) if for_down else None,
            torch.mm(grad_TO.t(), low_TR).to(up_OR.dtype).mul_(ctx.scale) if for_up else None,
            None,
        )
