"""The loss of each response token: clipped policy gradient, divergence from a reference, entropy.

Shapes: T response tokens that count.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class LossSettings:
    """How tokens are weighed: PPO's clip below and above 1, and the weights of divergence and entropy."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_weight: float = 0.0
    entropy_weight: float = 0.0


class TokenLosses(NamedTuple):
    """One number for each token; only `loss_T` carries gradients."""

    loss_T: torch.Tensor
    ratio_T: torch.Tensor
    clipped_T: torch.Tensor
    kl_T: torch.Tensor


def token_losses(
    logprobs_T: torch.Tensor,
    entropies_T: torch.Tensor,
    advantages_T: torch.Tensor,
    old_T: torch.Tensor | None,
    reference_T: torch.Tensor | None,
    settings: LossSettings,
) -> TokenLosses:
    """Return each token's loss, not yet divided by the number of tokens.

    -min(r A, clip(r) A) with r = exp(logprob - old); without `old_T` the policy is its own, r = 1. The divergence is
    exp(d) - d - 1 with d = reference - logprob, never negative (Schulman's third estimator).
    """
    ratios_T = torch.exp(logprobs_T - (logprobs_T.detach() if old_T is None else old_T))
    plain_T = ratios_T * advantages_T
    kept_T = ratios_T.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_T
    loss_T = -torch.minimum(plain_T, kept_T)
    kl_T = torch.zeros_like(logprobs_T)
    if reference_T is not None:
        apart_T = reference_T - logprobs_T
        kl_T = apart_T.exp() - apart_T - 1
        if settings.kl_weight:
            loss_T = loss_T + settings.kl_weight * kl_T
    if settings.entropy_weight:
        loss_T = loss_T - settings.entropy_weight * entropies_T
    return TokenLosses(loss_T, ratios_T.detach(), (kept_T < plain_T).detach(), kl_T.detach())
