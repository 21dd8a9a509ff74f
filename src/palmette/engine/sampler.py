"""Draws one token per row, each row from a random stream of its own.

Shapes: R rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

NARROW_GAP = 1e-3
"""Two candidates closer than this in perturbed logits may swap when the batch changes.

Measured on CPU in float32: logits of one row move by up to 7e-6 (seedling) and 4e-5 (SmolLM2-135M) when it is run
beside 23 others. A gap this narrow comes up once in 500 to 2,000 tokens.
"""


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn; temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None


@dataclass(frozen=True)
class Draw:
    """Tokens drawn for R rows, and which of the draws were too close to call."""

    tokens_R: torch.Tensor
    narrow_R: torch.Tensor


def noise(seeds: Sequence[int], places: Sequence[int], vocabulary: int) -> torch.Tensor:
    """Return Gumbel noise for R rows: a pure function of a row's seed and of the token's place in its step.

    Always drawn on the CPU, so that devices agree. Nothing is kept between tokens: a row that is set aside and
    computed again later goes on as if it had not been.
    """
    streams_R = _scrambled(np.array(seeds, dtype=np.uint64) + np.array(places, dtype=np.uint64) * _GOLDEN)
    bits_RV = _scrambled(streams_R[:, None] + np.arange(1, vocabulary + 1, dtype=np.uint64) * _GOLDEN)
    # The upper 32 bits as a number inside (0, 1); float32 is finest near 0, where the largest noise comes from.
    uniform_RV = torch.from_numpy((bits_RV >> np.uint64(32)).astype(np.float32)).add_(0.5).mul_(2.0**-32)
    return uniform_RV.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_().log_().neg_()


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _scrambled(values: Any) -> Any:
    """Mix 64-bit numbers as SplitMix64 does (Steele, Lea, Flood 2014). Numbers wrap around."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw(logits_RV: torch.Tensor, noise_RV: torch.Tensor | None, sampling: Sampling) -> Draw:
    """Draw a token for each row: the largest of logits / temperature + Gumbel noise is an exact sample.

    Without noise (temperature 0) the likeliest token is taken. Cut tokens cannot win, except that a token on the
    edge of the cut marks its row as narrow.
    """
    if noise_RV is None:
        return _largest(logits_RV)
    scaled_RV = logits_RV / sampling.temperature
    perturbed_RV = scaled_RV + noise_RV.to(scaled_RV.device)
    if sampling.top_k is None and sampling.top_p >= 1.0:
        return _largest(perturbed_RV)
    sure_R, floor_R, doubtful_R = _cuts(scaled_RV, sampling)
    exact = _largest(perturbed_RV.masked_fill(scaled_RV < floor_R[:, None], -torch.inf))
    inner = _largest(perturbed_RV.masked_fill(scaled_RV <= sure_R[:, None], -torch.inf))
    outer = _largest(perturbed_RV.masked_fill(scaled_RV < doubtful_R[:, None], -torch.inf))
    narrow_R = exact.narrow_R | (inner.tokens_R != exact.tokens_R) | (outer.tokens_R != exact.tokens_R)
    return Draw(exact.tokens_R, narrow_R)


def _largest(values_RV: torch.Tensor) -> Draw:
    best = values_RV.topk(min(2, values_RV.shape[1]), dim=-1)
    if values_RV.shape[1] == 1:
        return Draw(best.indices[:, 0], torch.zeros(len(values_RV), dtype=torch.bool))
    return Draw(best.indices[:, 0], best.values[:, 0] - best.values[:, 1] < NARROW_GAP)


def _cuts(scaled_RV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where top-k, then top-p cut each row, as scaled logits.

    Tokens above the first are inside whatever the rounding, those from the second on are inside, those below the third
    are outside whatever the rounding.
    """
    rows, vocabulary = scaled_RV.shape
    kept = min(sampling.top_k or vocabulary, vocabulary)
    sorted_RV = scaled_RV.sort(dim=-1, descending=True).values
    # In float64: a float32 running sum over 49,152 tokens is off by more than the margin.
    mass_RV = sorted_RV[:, :kept].double().softmax(-1).cumsum(-1)
    before_RV = torch.cat([mass_RV.new_zeros(rows, 1), mass_RV[:, :-1]], dim=1)

    def inside(top_p: float) -> torch.Tensor:
        return (before_RV < top_p).sum(-1, keepdim=True).clamp(min=1)

    padded_RV = torch.cat([sorted_RV, sorted_RV.new_full((rows, 1), -torch.inf)], dim=1)
    margin = NARROW_GAP if sampling.top_p < 1 else 0.0
    sure_R = padded_RV.gather(1, inside(sampling.top_p - margin))[:, 0] + NARROW_GAP
    floor_R = padded_RV.gather(1, inside(sampling.top_p) - 1)[:, 0]
    doubtful_R = padded_RV.gather(1, inside(sampling.top_p + margin) - 1)[:, 0] - NARROW_GAP
    return sure_R, floor_R, doubtful_R
