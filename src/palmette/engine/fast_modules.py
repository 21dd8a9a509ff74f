"""Faster code for modules of known kinds, in use during a forward pass of the engine only; others are left alone."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from palmette.engine.lora_products import fast_adapted, is_lora_layer
from palmette.engine.products import fast_product

Swap = tuple[torch.nn.Module, Callable[..., Any]]
"""A module, and what is called in place of its forward."""


def swaps(model: torch.nn.Module) -> list[Swap]:
    """Return the model's modules for which there is faster code, with that code.

    Linear layers that run torch's own code on plain weights, or PEFT's with LoRA adapters, and root mean square norms
    whose code is Llama's, whatever their class: transformers copies it into each model file. Modules with code of their
    own are left out.
    """
    found: list[Swap] = []
    for module in model.modules():
        if "forward" in module.__dict__:
            continue
        if type(module) is torch.nn.Linear and type(module.weight) is torch.nn.Parameter:
            found.append((module, partial(fast_product, module)))
        elif _same_code(type(module).forward, LlamaRMSNorm.forward):
            found.append((module, partial(fast_norm, module)))
        elif is_lora_layer(module):
            found.append((module, partial(fast_adapted, module)))
    return found


@contextmanager
def in_use(swapped: Sequence[Swap]) -> Iterator[None]:
    """Run the faster code inside the block. Results differ from those of the modules' own code by rounding."""
    for module, forward in swapped:
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, _ in swapped:
            del module.__dict__["forward"]


def fast_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return what LlamaRMSNorm returns, but for rounding, with fewer passes over `hidden`.

    Other dtypes than float32, and what gradients are recorded of, are left to the module's own code.
    """
    if hidden.dtype != torch.float32 or norm.weight.dtype != torch.float32 or torch.is_grad_enabled():
        own: torch.Tensor = type(norm).forward(norm, hidden)
        return own
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    scale = length.square_().div_(hidden.shape[-1]).add_(norm.variance_epsilon).rsqrt_()
    weight: torch.Tensor = norm.weight
    return (hidden * weight).mul_(scale)


def _same_code(one: Any, other: Any) -> bool:
    """Return whether two functions consist of the same instructions on the same names and constants."""
    codes = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if not all(isinstance(code, CodeType) for code in codes):
        return False
    first, second = codes
    return all(getattr(first, part) == getattr(second, part) for part in ("co_code", "co_names", "co_consts"))
