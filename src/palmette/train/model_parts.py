"""The parts of a causal language model that training uses: its body, its head and the weights to train.

Shapes: D hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from palmette.errors import BackendError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def body_of(model: Any) -> nn.Module:
    """Return the part of a causal language model that computes hidden states, adapters included.

    Raises BackendError if that part is not a module of its own.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = getattr(inner, inner.base_model_prefix, None)
    if not isinstance(body, nn.Module):
        raise BackendError(f"cannot train a {inner.config.model_type}: its body and its head are not separate modules")
    return body


def refuse_dropout(model: nn.Module) -> None:
    """Raise BackendError if the model has dropout: a sample that is computed again must give the same gradient."""
    for module in model.modules():
        rate = module.p if isinstance(module, nn.Dropout) else getattr(module, "attention_dropout", 0)
        if rate:
            name = type(module).__name__
            raise BackendError(f"cannot train with a dropout of {rate} in {name}: set it to 0 in config.json")


@dataclass(frozen=True)
class Head:
    """The layer that computes logits from hidden states: `softcap(hidden @ weight.T + bias) / temperature`."""

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None = None
    softcap: float | None = None
    temperature: float = 1.0


def head_of(model: nn.Module, temperature: float = 1.0) -> Head:
    """Return the head of a transformers causal language model.

    Raises BackendError if it is not a plain linear layer, or if the model scales its logits.
    """
    layer = model.get_output_embeddings()  # type: ignore[operator]
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    if type(layer) is not nn.Linear:
        adapted = " Leave lm_head out of the adapter's target modules." if hasattr(layer, "base_layer") else ""
        raise BackendError(f"cannot train a {config.model_type}: its head is a {type(layer).__name__}.{adapted}")
    scales = [name for name in ("logit_scale", "logits_scaling", "lm_head_multiplier") if getattr(config, name, None)]
    if scales:
        raise BackendError(f"cannot train a {config.model_type}: its logits are scaled by {scales[0]}")
    return Head(layer.weight, layer.bias, getattr(config, "final_logit_softcapping", None), temperature)


LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers that `train_lora` adapts by default."""


def train_all(model: "PreTrainedModel") -> "PreTrainedModel":
    """Set `requires_grad` on every weight; return the model."""
    return model.requires_grad_(True)


def train_lora(
    model: "PreTrainedModel", *, rank: int = 16, alpha: int | None = None, targets: Sequence[str] = LINEAR_LAYERS
) -> Any:
    """Return the model with LoRA adapters on its linear layers; only the adapters have `requires_grad`.

    `alpha` is twice the rank by default. Raises BackendError if peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise BackendError("LoRA needs peft: pip install 'palmette[adapters]'") from error
    config = LoraConfig(r=rank, lora_alpha=2 * rank if alpha is None else alpha, target_modules=list(targets))
    return get_peft_model(model, config)
