"""Statistics of one update, summed over its passes.

Shapes: T counted response tokens of a pass, P passes, 7 statistics.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from palmette.train.update.batch import Given
from palmette.train.update.loss import TokenLosses
from palmette.train.update.token_batch import TokenBatch


@dataclass(frozen=True)
class UpdateResult:
    """Statistics of one update: means over the response tokens that count, and the gradient norm before clipping.

    Losses are multiplied by the weights of their samples. Ratios are exp(logprob - old_logprob) before the clip: the
    smallest, the mean and the largest. They are 1 if the samples have no `old_logprobs`, and 1 up to rounding if the
    policy has not changed since it generated them.
    """

    loss: float
    kl: float
    clipped_share: float
    entropy: float
    ratio_low: float
    ratio_mean: float
    ratio_high: float
    gradient_norm: float
    response_tokens: int
    pieces: int
    critic: "UpdateResult | None" = None
    """Those of the critic's own update, where it is a model of its own; its loss is the value loss."""


def result_of(statistics: Sequence[float], *, gradient_norm: float, response_tokens: int, pieces: int) -> UpdateResult:
    """Return the result of an update, given its seven statistics as `means_of` orders them."""
    loss, kl, clipped, entropy, ratio_mean, ratio_low, ratio_high = statistics
    return UpdateResult(
        loss=loss,
        kl=kl,
        clipped_share=clipped,
        entropy=entropy,
        ratio_low=ratio_low,
        ratio_mean=ratio_mean,
        ratio_high=ratio_high,
        gradient_norm=gradient_norm,
        response_tokens=response_tokens,
        pieces=pieces,
    )


def weighed(losses: TokenLosses, given: Given, total: int) -> torch.Tensor:
    """Return the loss of a pass: that of each token by the weight of its sample, divided by the update's tokens."""
    return (losses.loss_T * given.weights_T).sum() / total


@torch.no_grad()
def pass_sums(loss: torch.Tensor, losses: TokenLosses, tokens: TokenBatch, given: Given, total: int) -> torch.Tensor:
    """Return seven statistics of a pass.

    They are its share of the means of loss, KL divergence, clipped share and entropy; the sum, the smallest and the
    largest of its ratios.
    """
    ratios_T = losses.ratio_T if given.old_T is None else (tokens.logprobs_T - given.old_T).exp()
    clipped_T = losses.clipped_T.to(ratios_T.dtype)
    means = [part_T.sum() / total for part_T in (losses.kl_T, clipped_T, tokens.entropies_T)]
    return torch.stack([loss, *means, ratios_T.sum(), ratios_T.amin(), ratios_T.amax()])


def merged_sums(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the statistics of several passes as one."""
    parts_P7 = torch.stack(list(parts))
    return torch.cat([parts_P7[:, :5].sum(0), parts_P7[:, 5].amin()[None], parts_P7[:, 6].amax()[None]])


def means_of(parts: Sequence[torch.Tensor], total: int) -> torch.Tensor:
    """Return the statistics of all passes of an update, the sum of ratios divided by its tokens.

    Ratios are summed first and divided last: a sum of ones is exact, so that their mean is exactly 1.
    """
    sums_7 = merged_sums(parts)
    sums_7[4] /= total
    return sums_7
