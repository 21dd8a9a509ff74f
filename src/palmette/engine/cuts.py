"""Truncation for sampling: top-k, then top-p (nucleus) of what top-k keeps, and min-p.

Shapes: R rows, V vocabulary, K candidates, the most likely first.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from dataclasses import dataclass

import torch

from palmette.engine.limits import SORTED_LOGITS


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. Temperature 0 is greedy decoding: the most likely token is taken.

    `min_p` excludes tokens with less than `min_p` times the probability of the most likely one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0

    @property
    def logprob_temperature(self) -> float:
        """Temperature at which log-probabilities of sampled tokens are given: `temperature`, or 1 if it is 0."""
        return self.temperature or 1.0

    @property
    def cuts(self) -> bool:
        """Whether top-k, top-p or min-p may exclude a token."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0


def cut(scaled_RV: torch.Tensor, sampling: Sampling, gap: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return three thresholds per row; a token is kept if its scaled logit is at or above the threshold.

    The second threshold is the truncation itself. The first and the third allow for rounding: as long as logits are off
    by less than `gap`, a token at or above the first is certainly kept and a token below the third certainly excluded.
    Each threshold keeps at least the most likely token.
    """
    top_R = scaled_RV.amax(-1)
    sure_R = floor_R = doubtful_R = torch.full_like(top_R, -torch.inf)
    if sampling.top_k is not None or sampling.top_p < 1:
        sure_R, floor_R, doubtful_R = _by_rank(scaled_RV, sampling, gap)
    if sampling.min_p > 0:
        min_p_R = top_R + math.log(sampling.min_p)
        sure_R = sure_R.maximum(min_p_R + gap)
        floor_R = floor_R.maximum(min_p_R)
        doubtful_R = doubtful_R.maximum(min_p_R - gap)
    return sure_R.minimum(top_R), floor_R.minimum(top_R), doubtful_R.minimum(top_R)


def _by_rank(
    scaled_RV: torch.Tensor, sampling: Sampling, gap: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same three thresholds for top-k and top-p alone."""
    rows, vocabulary = scaled_RV.shape
    kept = min(sampling.top_k or vocabulary, vocabulary)
    margin = gap if sampling.top_p < 1 else 0.0
    count = min(vocabulary, max(SORTED_LOGITS, kept + 1) if sampling.top_k else SORTED_LOGITS)
    while True:
        sorted_RK = scaled_RV.topk(count, dim=-1).values
        # In float64: a float32 cumulative sum over 49,152 tokens is off by more than the margin.
        head_RK = sorted_RK[:, :kept].double()
        support = head_RK if count > kept or count == vocabulary else scaled_RV.double()
        mass_RK = (head_RK - support.logsumexp(-1, keepdim=True)).exp_().cumsum(-1)
        if count >= min(kept + 1, vocabulary) or bool((mass_RK[:, -2] >= sampling.top_p + margin).all()):
            break
        count = vocabulary
    # Total probability of the candidates before each one: top-p keeps a candidate if that is below top_p.
    before_RK = torch.cat([mass_RK.new_zeros(rows, 1), mass_RK[:, :-1]], dim=1)

    def kept_count(top_p: float) -> torch.Tensor:
        return (before_RK < top_p).sum(-1, keepdim=True).clamp(min=1)

    padded_RK = torch.cat([sorted_RK, sorted_RK.new_full((rows, 1), -torch.inf)], dim=1)
    sure_R = padded_RK.gather(1, kept_count(sampling.top_p - margin))[:, 0] + gap
    floor_R = padded_RK.gather(1, kept_count(sampling.top_p) - 1)[:, 0]
    doubtful_R = padded_RK.gather(1, kept_count(sampling.top_p + margin) - 1)[:, 0] - gap
    return sure_R, floor_R, doubtful_R
