"""The head of a causal language model: what turns hidden states into logits.

Shapes: D hidden size, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import nn

from palmette.errors import BackendError


@dataclass(frozen=True)
class Head:
    """What turns a hidden state into logits: `softcap(hidden @ weight.T + bias) / temperature`."""

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None = None
    softcap: float | None = None
    temperature: float = 1.0


def head_of(model: nn.Module, temperature: float = 1.0) -> Head:
    """Return the head of a transformers causal language model; raise BackendError where it is no plain linear one."""
    layer = model.get_output_embeddings()  # type: ignore[operator]
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    if type(layer) is not nn.Linear:
        adapted = " Leave lm_head out of the adapter's target modules." if hasattr(layer, "base_layer") else ""
        raise BackendError(f"cannot train a {config.model_type}: its head is a {type(layer).__name__}.{adapted}")
    scales = [name for name in ("logit_scale", "logits_scaling", "lm_head_multiplier") if getattr(config, name, None)]
    if scales:
        raise BackendError(f"cannot train a {config.model_type}: its logits are scaled by {scales[0]}")
    return Head(layer.weight, layer.bias, getattr(config, "final_logit_softcapping", None), temperature)
