"""Loss of each response token: the algorithm's policy term, KL divergence from a reference, entropy bonus, value term.

Shapes: T response tokens that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from palmette.train.divergence import Estimator
from palmette.train.update.token_batch import TokenBatch


@dataclass(frozen=True)
class LossSettings:
    """Clip range and the weights of the terms that all algorithms share.

    The clip is that of PPO, from 1 - `clip_low` to 1 + `clip_high`; `dual_clip` bounds the ratio of tokens with a
    negative advantage (Ye et al., 2020), None does not. An algorithm with a policy term of its own ignores all three.
    `kl` is the estimator of the KL divergence. The value term exists if the batch has `values_T`: an estimate may move
    by at most `value_clip` from the old one before its loss stops to fall, None does not clip.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_weight: float = 0.0
    entropy_weight: float = 0.0
    dual_clip: float | None = None
    kl: Estimator = "k3"
    value_weight: float = 0.0
    value_clip: float | None = None


class PolicyLosses(NamedTuple):
    """One value per token; only `loss_T` carries gradients. `clipped_T` is true if the clip changed the loss.

    `ratio_T` is exp(logprob - old) before any clip.
    """

    loss_T: torch.Tensor
    ratio_T: torch.Tensor
    clipped_T: torch.Tensor


class TokenLosses(NamedTuple):
    """`PolicyLosses` with all other terms added to `loss_T`, and the estimated KL divergence of each token."""

    loss_T: torch.Tensor
    ratio_T: torch.Tensor
    clipped_T: torch.Tensor
    kl_T: torch.Tensor


PolicyLoss = Callable[[TokenBatch], PolicyLosses]
"""The policy term of an algorithm."""


def token_losses(tokens: TokenBatch, settings: LossSettings, policy: PolicyLoss | None = None) -> TokenLosses:
    """Return the loss of each token, not yet weighed by its sample nor divided by the number of tokens.

    The policy term is `policy`, or without one `clipped_losses` with the clips of the settings. `kl_T` is measured with
    `settings.kl` wherever there is a reference, also if it has no weight.
    """
    if policy is None:
        found = clipped_losses(tokens, settings.clip_low, settings.clip_high, settings.dual_clip)
    else:
        found = policy(tokens)
    loss_T, kl_T = found.loss_T, torch.zeros_like(tokens.logprobs_T)
    if tokens.reference_T is not None:
        kl_T = divergences(tokens.logprobs_T, tokens.reference_T, settings.kl)
        if settings.kl_weight:
            loss_T = loss_T + settings.kl_weight * kl_T
    if settings.entropy_weight:
        loss_T = loss_T - settings.entropy_weight * tokens.entropies_T
    if settings.value_weight and tokens.values_T is not None and tokens.returns_T is not None:
        value_loss_T = value_losses(tokens.values_T, tokens.old_values_T, tokens.returns_T, settings.value_clip)
        loss_T = loss_T + settings.value_weight * value_loss_T
    return TokenLosses(loss_T, found.ratio_T, found.clipped_T, kl_T.detach())


def no_policy_losses(tokens: TokenBatch) -> PolicyLosses:
    """Return a policy term of 0: that of a critic with a model of its own, which learns values and nothing else."""
    zeros_T = torch.zeros_like(tokens.logprobs_T)
    return PolicyLosses(zeros_T, torch.ones_like(zeros_T), torch.zeros_like(zeros_T, dtype=torch.bool))


def ratios(tokens: TokenBatch) -> torch.Tensor:
    """Return exp(logprob - old) of each token, with gradients: 1 without `old_T`."""
    old_T = tokens.logprobs_T.detach() if tokens.old_T is None else tokens.old_T
    return torch.exp(tokens.logprobs_T - old_T)


def clipped_losses(tokens: TokenBatch, low: float, high: float, dual: float | None = None) -> PolicyLosses:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A) of each token, r the token's ratio: PPO's clipped loss.

    With `dual`, the loss of a token with negative advantage is at most -dual x A, whatever its ratio.
    """
    ratios_T = ratios(tokens)
    return bounded_losses(ratios_T, ratios_T.detach(), tokens.advantages_T, low, high, dual)


def bounded_losses(
    weights_T: torch.Tensor,
    raw_T: torch.Tensor,
    advantages_T: torch.Tensor,
    low: float,
    high: float,
    dual: float | None,
) -> PolicyLosses:
    """Return PPO's clipped loss for these importance weights, with `raw_T` as the ratios to report."""
    unclipped_T = weights_T * advantages_T
    gain_T = torch.minimum(unclipped_T, weights_T.clamp(1 - low, 1 + high) * advantages_T)
    if dual is not None:
        gain_T = torch.where(advantages_T < 0, torch.maximum(gain_T, dual * advantages_T), gain_T)
    return PolicyLosses(-gain_T, raw_T, (gain_T != unclipped_T).detach())


def divergences(logprobs_T: torch.Tensor, reference_T: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """Return Schulman's estimate of the KL divergence from the reference at each token, with gradients.

    With d = reference - logprob: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1. The gradient of k1 has the mean 0 over
    tokens that the policy sampled: in a loss it pulls nowhere, in a reward it is the right one.
    """
    difference_T = reference_T - logprobs_T
    if estimator == "k1":
        return -difference_T
    if estimator == "k2":
        return difference_T.square() / 2
    return difference_T.exp() - difference_T - 1


def value_losses(
    values_T: torch.Tensor, old_T: torch.Tensor | None, returns_T: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Return half the squared error of each value, or that of the value bounded to old +- clip where it is larger.

    Without `clip` or without `old_T` nothing is bounded.
    """
    errors_T = (values_T - returns_T).square()
    if clip is not None and old_T is not None:
        bounded_T = torch.clamp(values_T, old_T - clip, old_T + clip)
        errors_T = torch.maximum(errors_T, (bounded_T - returns_T).square())
    return errors_T / 2
