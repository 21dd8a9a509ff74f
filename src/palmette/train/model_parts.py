"""The parts of a causal language model that training uses: its body, its head and the weights to train.

Shapes: D hidden size, V vocabulary.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from palmette.errors import BackendError
from palmette.train.half_lora import add_in_half

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


@dataclass(frozen=True)
class Head:
    """The layer that computes logits from hidden states: `softcap(hidden @ weight.T + bias) / temperature`."""

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None = None
    softcap: float | None = None
    temperature: float = 1.0

    def logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Return the logits before they are divided by the temperature, as TV in float32 or wider."""
        logits_TV = nn.functional.linear(hidden_TD, self.weight_VD, self.bias_V)
        logits_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
        return logits_TV if self.softcap is None else self.softcap * torch.tanh(logits_TV / self.softcap)


def head_of(model: nn.Module, temperature: float = 1.0) -> Head:
    """Return the head of a transformers causal language model.

    Raises BackendError if it is not a plain linear layer. `check_trainable` tells whether there is more to the logits.
    """
    layer = model.get_output_embeddings()  # type: ignore[operator]
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    if type(layer) is not nn.Linear:
        adapted = " Leave lm_head out of the adapter's target modules." if hasattr(layer, "base_layer") else ""
        raise BackendError(f"cannot train a {config.model_type}: its head is a {type(layer).__name__}.{adapted}")
    softcaps = [getattr(config, name) for name in _SOFTCAPS if getattr(config, name, None)]
    return Head(layer.weight, layer.bias, softcaps[0] if softcaps else None, temperature)


_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names that configs have for the softcap on logits: Gemma 2 and later, RecurrentGemma, xLSTM."""


def matrices_of(model: Any) -> "list[nn.Parameter]":
    """Return the matrices that are trained inside of layers: neither embeddings nor the output's weights."""
    ends = {
        id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None
    }
    return [
        weight for weight in model.parameters() if weight.requires_grad and weight.dim() == 2 and id(weight) not in ends
    ]


def train_all(model: "PreTrainedModel") -> "PreTrainedModel":
    """Set `requires_grad` on every weight; return the model."""
    return model.requires_grad_(True)


def train_lora(
    model: "PreTrainedModel", *, rank: int = 16, alpha: int | None = None, targets: Sequence[str] | None = None
) -> Any:
    """Return the model with LoRA adapters; only the adapters have `requires_grad`.

    They are on the linear layers with these names, by default on all but the head. `alpha` is twice the rank by
    default. Raises BackendError if peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise BackendError("LoRA needs peft: pip install 'palmette[adapters]'") from error
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        target_modules="all-linear" if targets is None else list(targets),
    )
    return add_in_half(get_peft_model(model, config))
