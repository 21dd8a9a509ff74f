"""Which tokens a draw may give: top-k, then top-p of what is left, and nothing far below the likeliest (min-p).

Shapes: R rows, V vocabulary, K candidates from the likeliest on.
"""

import math
from dataclasses import dataclass

import torch

from palmette.engine.limits import SORTED_LOGITS


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn; temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0

    @property
    def logprob_temperature(self) -> float:
        """The temperature of the log-probabilities that come with a draw: its own, 1 where the likeliest is taken."""
        return self.temperature or 1.0

    @property
    def cuts(self) -> bool:
        """Tell whether any token may be left out."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0


def cut(scaled_RV: torch.Tensor, sampling: Sampling, gap: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return three floors of scaled logits for each row; a token from a floor on is inside.

    The second is the cut itself. Whatever the rounding (logits off by less than the gap), from the first on a token is
    inside, below the third outside. The likeliest token is inside all three.
    """
    top_R = scaled_RV.amax(-1)
    sure_R = floor_R = doubtful_R = torch.full_like(top_R, -torch.inf)
    if sampling.top_k is not None or sampling.top_p < 1:
        sure_R, floor_R, doubtful_R = _by_rank(scaled_RV, sampling, gap)
    if sampling.min_p > 0:
        least_R = top_R + math.log(sampling.min_p)
        sure_R = sure_R.maximum(least_R + gap)
        floor_R = floor_R.maximum(least_R)
        doubtful_R = doubtful_R.maximum(least_R - gap)
    return sure_R.minimum(top_R), floor_R.minimum(top_R), doubtful_R.minimum(top_R)


def _by_rank(
    scaled_RV: torch.Tensor, sampling: Sampling, gap: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, vocabulary = scaled_RV.shape
    kept = min(sampling.top_k or vocabulary, vocabulary)
    margin = gap if sampling.top_p < 1 else 0.0
    count = min(vocabulary, max(SORTED_LOGITS, kept + 1) if sampling.top_k else SORTED_LOGITS)
    while True:
        sorted_RK = scaled_RV.topk(count, dim=-1).values
        # In float64: a float32 running sum over 49,152 tokens is off by more than the margin.
        head_RK = sorted_RK[:, :kept].double()
        whole = head_RK if count > kept or count == vocabulary else scaled_RV.double()
        mass_RK = (head_RK - whole.logsumexp(-1, keepdim=True)).exp_().cumsum(-1)
        if count >= min(kept + 1, vocabulary) or bool((mass_RK[:, -2] >= sampling.top_p + margin).all()):
            break
        count = vocabulary
    before_RK = torch.cat([mass_RK.new_zeros(rows, 1), mass_RK[:, :-1]], dim=1)

    def inside(top_p: float) -> torch.Tensor:
        return (before_RK < top_p).sum(-1, keepdim=True).clamp(min=1)

    padded_RK = torch.cat([sorted_RK, sorted_RK.new_full((rows, 1), -torch.inf)], dim=1)
    sure_R = padded_RK.gather(1, inside(sampling.top_p - margin))[:, 0] + gap
    floor_R = padded_RK.gather(1, inside(sampling.top_p) - 1)[:, 0]
    doubtful_R = padded_RK.gather(1, inside(sampling.top_p + margin) - 1)[:, 0] - gap
    return sure_R, floor_R, doubtful_R
