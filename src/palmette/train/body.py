"""The body of a causal language model: what turns tokens into hidden states."""

from typing import Any

from torch import nn

from palmette.errors import BackendError


def body_of(model: Any) -> nn.Module:
    """Return the part of a causal language model that gives hidden states, adapters included."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = getattr(inner, inner.base_model_prefix, None)
    if not isinstance(body, nn.Module):
        raise BackendError(f"cannot train a {inner.config.model_type}: its body and head are not apart")
    return body


def refuse_dropout(model: nn.Module) -> None:
    """Raise BackendError where outputs would be random: the same sample must give the same gradient twice."""
    for part in model.modules():
        share = part.p if isinstance(part, nn.Dropout) else getattr(part, "attention_dropout", 0)
        if share:
            where = type(part).__name__
            raise BackendError(f"cannot train with a dropout of {share} in {where}: set it to 0 in config.json")
