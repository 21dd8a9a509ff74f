"""Faster code for modules of known kinds, in use during a forward pass of the engine only; others are left alone.

A module is known by its code, not by its class: transformers copies Llama's code into the files of many models.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import isfunction, unwrap
from typing import Any

import torch
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from palmette.engine.layer import Rotation, forward_layer, normalized
from palmette.engine.lora_products import fast_adapted, is_lora_layer
from palmette.engine.products import product

Swap = tuple[torch.nn.Module, Callable[..., Any]]
"""A module, and what is called in place of its forward."""


def swaps(model: torch.nn.Module) -> list[Swap]:
    """Return the model's modules for which there is faster code, with that code.

    These are linear layers that run torch's own code on plain weights, or PEFT's with LoRA adapters; norms with the
    code of LlamaRMSNorm; and decoder layers with Llama's code that consist of plain linear layers and such norms only,
    in float32, without hooks inside.
    """
    found: list[Swap] = []
    rotation = Rotation()
    for module in model.modules():
        if _is_linear(module):
            found.append((module, partial(_linear, module)))
        elif _runs(module, LlamaRMSNorm):
            found.append((module, partial(_norm, module)))
        elif _is_llama_layer(module):
            found.append((module, partial(forward_layer, module, rotation)))
        elif "forward" not in module.__dict__ and is_lora_layer(module):
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


def _linear(linear: Any, values: torch.Tensor) -> torch.Tensor:
    return product(values, linear.weight, linear.bias)


def _norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.dtype != torch.float32 or norm.weight.dtype != torch.float32 or torch.is_grad_enabled():
        own: torch.Tensor = type(norm).forward(norm, hidden)
        return own
    return normalized(hidden, norm.weight, norm.variance_epsilon)


def _is_linear(module: torch.nn.Module) -> bool:
    return (
        type(module) is torch.nn.Linear
        and type(module.weight) is torch.nn.Parameter
        and "forward" not in module.__dict__
    )


def _is_llama_layer(layer: Any) -> bool:
    if not _runs(layer, LlamaDecoderLayer):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    linears = [getattr(attention, f"{name}_proj", None) for name in "qkvo"]
    linears += [getattr(mlp, f"{name}_proj", None) for name in ("gate", "up", "down")]
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    return (
        (_runs(attention, LlamaAttention) or _runs(attention, Qwen2Attention))
        and _runs(mlp, LlamaMLP)
        and _runs(mlp.act_fn, SiLUActivation)
        and all(linear is not None and _is_linear(linear) for linear in linears)
        and all(_runs(norm, LlamaRMSNorm) for norm in norms)
        and all(parameter.dtype == torch.float32 for parameter in layer.parameters())
        and not any(_has_hooks(module) for module in layer.modules() if module is not layer)
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _runs(module: torch.nn.Module, other: type[torch.nn.Module]) -> bool:
    """Return whether the module's forward is the class's, or a copy of it that calls the same functions."""
    return "forward" not in module.__dict__ and _is_copy(type(module).forward, other.forward)


def _is_copy(one: Any, other: Any) -> bool:
    """Return whether two functions have the same instructions and names, and so have all functions that they name.

    Ernie 4.5 has Llama's attention to the letter, but its function of the same name rotates other pairs of numbers.
    """
    one, other = unwrap(one), unwrap(other)
    if one is other:
        return True
    if not (isfunction(one) and isfunction(other)):
        return False
    code, its_code = one.__code__, other.__code__
    if any(getattr(code, part) != getattr(its_code, part) for part in ("co_code", "co_names", "co_consts")):
        return False
    named = [(one.__globals__.get(name), other.__globals__.get(name)) for name in code.co_names]
    return all(_is_copy(mine, its) for mine, its in named if isfunction(mine) or isfunction(its))
