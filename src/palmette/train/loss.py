"""Loss of each response token: clipped policy gradient (PPO), KL divergence from a reference, entropy bonus.

Shapes: T response tokens that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class LossSettings:
    """PPO's clip range, from 1 - `clip_low` to 1 + `clip_high`, and the weights of KL divergence and entropy."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_weight: float = 0.0
    entropy_weight: float = 0.0


class TokenLosses(NamedTuple):
    """One value per token; only `loss_T` carries gradients. `clipped_T` is true if the clip changed the loss."""

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
    """Return the loss of each token, not yet divided by the number of tokens.

    The policy term is -min(r A, clip(r) A) with r = exp(logprob - old). Without `old_T`, old is the detached logprob:
    r = 1. The KL divergence is estimated as exp(d) - d - 1 with d = reference - logprob, which is never negative
    (Schulman's k3).
    """
    ratios_T = torch.exp(logprobs_T - (logprobs_T.detach() if old_T is None else old_T))
    unclipped_T = ratios_T * advantages_T
    bounded_T = ratios_T.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_T
    loss_T = -torch.minimum(unclipped_T, bounded_T)
    kl_T = torch.zeros_like(logprobs_T)
    if reference_T is not None:
        difference_T = reference_T - logprobs_T
        kl_T = difference_T.exp() - difference_T - 1
        if settings.kl_weight:
            loss_T = loss_T + settings.kl_weight * kl_T
    if settings.entropy_weight:
        loss_T = loss_T - settings.entropy_weight * entropies_T
    return TokenLosses(loss_T, ratios_T.detach(), (bounded_T < unclipped_T).detach(), kl_T.detach())
