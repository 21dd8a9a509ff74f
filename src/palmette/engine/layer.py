"""A decoder layer of Llama's kind in fewer operations than its own code: norms, rotation and residuals in place.

Shapes: T tokens of a tick, H hidden size, W head width.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from typing import Any

import torch

from palmette.engine.attention import Tick, tree_attention
from palmette.engine.products import product


class Rotation:
    """Rotary embedding of queries and keys. Its sines with their signs are computed once for all layers of a pass."""

    def __init__(self) -> None:
        self._sin: torch.Tensor | None = None
        self._signed_T1W: torch.Tensor | None = None

    def signed(self, sin: torch.Tensor) -> torch.Tensor:
        """Return the sines (1, T, W) as T1W, those of the first half negative."""
        if self._signed_T1W is None or self._sin is not sin:
            signed_TW = sin[0].clone()
            signed_TW[:, : signed_TW.shape[1] // 2].neg_()
            self._sin, self._signed_T1W = sin, signed_TW[:, None]
        return self._signed_T1W


def normalized(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return what LlamaRMSNorm returns for float32, but for rounding."""
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    scale = length.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()
    return (hidden * weight).mul_(scale)


def forward_layer(
    layer: Any,
    rotation: Rotation,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    tick: Tick | None = None,
    **others: Any,
) -> torch.Tensor:
    """Return what the layer's own code returns for one sequence in float32, but for rounding. Records no gradients.

    All else is left to that code.
    """
    if (
        torch.is_grad_enabled()
        or position_embeddings is None
        or hidden_states.dtype != torch.float32
        or len(hidden_states) != 1
    ):
        own: torch.Tensor = type(layer).forward(
            layer, hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings, tick=tick,
            **others,
        )  # fmt: skip
        return own
    attention, mlp = layer.self_attn, layer.mlp
    cos_T1W, signed_T1W = position_embeddings[0][0][:, None], rotation.signed(position_embeddings[1])
    hidden_TH = hidden_states[0]

    def heads(linear: torch.nn.Linear) -> torch.Tensor:
        return product(input_TH, linear.weight, linear.bias).view(len(input_TH), -1, attention.head_dim)

    def rotated(states: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(states * cos_T1W, states.roll(states.shape[-1] // 2, -1), signed_T1W)

    norm = layer.input_layernorm
    input_TH = normalized(hidden_TH, norm.weight, norm.variance_epsilon)
    states = rotated(heads(attention.q_proj)), rotated(heads(attention.k_proj)), heads(attention.v_proj)
    query, key, value = (each.transpose(0, 1)[None] for each in states)
    attended, _ = tree_attention(attention, query, key, value, attention_mask, tick=tick, scaling=attention.scaling)
    out = attention.o_proj
    hidden_TH = product(attended.reshape(len(hidden_TH), -1), out.weight, out.bias).add_(hidden_TH)
    norm = layer.post_attention_layernorm
    input_TH = normalized(hidden_TH, norm.weight, norm.variance_epsilon)
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    gated = torch.nn.functional.silu(product(input_TH, gate.weight, gate.bias), inplace=True)
    gated.mul_(product(input_TH, up.weight, up.bias))
    return product(gated, down.weight, down.bias).add_(hidden_TH)[None]
