"""Samples one token per row by the Gumbel-max trick, each row with a random stream of its own.

Shapes: R rows, V vocabulary, B blocks of the vocabulary, K candidates.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from palmette.engine.cuts import Sampling, cut
from palmette.engine.limits import DRAWN_BLOCK

NARROW_GAP = 4e-4
"""A draw is narrow if its two best perturbed logits are closer than this: another batch could swap them by rounding.

Logits are divided by the temperature before noise is added, and what rounding changes in them is divided too: below a
temperature of 1 the gap is as much wider.

Measured on the CPU in float32: the difference between the logits of two tokens in one row changes with the batch by up
to 7e-6 (seedling) and 8e-5 (SmolLM2-135M, 128 rows). One in 1,000 to 5,000 draws is narrow.
"""


class Draw(NamedTuple):
    """Sampled tokens of R rows, their log-probabilities, and which draws were narrow (see `NARROW_GAP`).

    Log-probabilities are those of softmax(logits / `Sampling.logprob_temperature`), before top-k, top-p and min-p. If
    one is not finite, the logits of its row are not finite.
    """

    tokens_R: torch.Tensor
    logprobs_R: torch.Tensor
    narrow_R: torch.Tensor


@dataclass(frozen=True)
class Streams:
    """Random streams of R rows. A stream depends only on the row's seed and on the index of the token in its step.

    `places` are those indices, counted from 0.
    There is no state between tokens: a row that was preempted and recomputed samples the same tokens.
    """

    seeds: Sequence[int]
    places: Sequence[int]

    def gumbel(self, numbers: np.ndarray) -> torch.Tensor:
        """Return Gumbel noise as RK, a pure function of each row's stream and of `numbers` (K for all rows, or RK).

        Always computed on the CPU, so that all devices get the same noise.
        """
        streams_R = _splitmix(np.array(self.seeds, dtype=np.uint64) + np.array(self.places, dtype=np.uint64) * _GOLDEN)
        bits = _splitmix(streams_R[:, None] + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        # The upper 32 bits as a number in (0, 1). float32 is finest near 0, which gives the largest noise.
        uniform = torch.from_numpy((bits >> np.uint64(32)).astype(np.float32)).add_(0.5).mul_(2.0**-32)
        return uniform.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_().log_().neg_()


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(values: Any) -> Any:
    """Hash 64-bit numbers with the finalizer of SplitMix64 (Steele, Lea, Flood 2014). Products wrap around."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw(logits_RV: torch.Tensor, streams: Streams, sampling: Sampling) -> Draw:
    """Sample a token for each row: the argmax of logits / temperature + Gumbel noise is an exact softmax sample.

    At temperature 0 it is the argmax of the logits. Tokens that top-k, top-p or min-p exclude are never sampled. A row
    is also narrow if the token depends on how rounding places the edge of the truncation.
    """
    if sampling.temperature == 0:
        return _with_logprobs(logits_RV, _block_logsums(logits_RV)[0], *_argmax(logits_RV))
    scaled_RV = logits_RV if sampling.temperature == 1 else logits_RV / sampling.temperature
    gap = NARROW_GAP / min(1.0, sampling.temperature)
    if not sampling.cuts:
        logsums = _block_logsums(scaled_RV)
        return _with_logprobs(scaled_RV, logsums[0], *_gumbel_max(scaled_RV, logsums, streams, gap))
    sure_R, floor_R, doubtful_R = cut(scaled_RV, sampling, gap)
    tokens_R, narrow_R = _gumbel_max_from(scaled_RV, floor_R, streams, gap)
    for bound_R in (sure_R, doubtful_R):
        narrow_R = narrow_R | (_gumbel_max_from(scaled_RV, bound_R, streams, gap)[0] != tokens_R)
    return _with_logprobs(scaled_RV, _block_logsums(scaled_RV)[0], tokens_R, narrow_R)


def _gumbel_max_from(
    scaled_RV: torch.Tensor, floor_R: torch.Tensor, streams: Streams, gap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample as `_gumbel_max` does, among tokens with scaled logits at or above the row's floor."""
    kept_RV = scaled_RV.masked_fill(scaled_RV < floor_R[:, None], -torch.inf)
    return _gumbel_max(kept_RV, _block_logsums(kept_RV), streams, gap)


def _block_logsums(scaled_RV: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the log-sum-exp of each block of the vocabulary and the block size; the last block may be shorter."""
    vocabulary = scaled_RV.shape[1]
    if vocabulary <= DRAWN_BLOCK:
        return scaled_RV.logsumexp(-1, keepdim=True), vocabulary
    whole = vocabulary // DRAWN_BLOCK * DRAWN_BLOCK
    top_R1 = scaled_RV.amax(-1, keepdim=True)
    exps_RV = (scaled_RV - top_R1).exp_()
    sums_RB = exps_RV[:, :whole].reshape(len(exps_RV), -1, DRAWN_BLOCK).sum(-1)
    if whole < vocabulary:
        sums_RB = torch.cat([sums_RB, exps_RV[:, whole:].sum(-1, keepdim=True)], dim=1)
    return sums_RB.log_().add_(top_R1), DRAWN_BLOCK


def _gumbel_max(
    scaled_RV: torch.Tensor, logsums: tuple[torch.Tensor, int], streams: Streams, gap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample by Gumbel-max, first a block of the vocabulary, then a token of it; return tokens and narrow draws."""
    (logsums_RB, size), vocabulary = logsums, scaled_RV.shape[1]
    device, blocks = scaled_RV.device, logsums_RB.shape[1]
    if blocks == 1:
        return _argmax(scaled_RV + streams.gumbel(np.arange(vocabulary)).to(device), gap)
    block_R, narrow_R = _argmax(logsums_RB + streams.gumbel(vocabulary + np.arange(blocks)).to(device), gap)
    # A short last block is read as a full one that starts earlier; the tokens of the block before it are masked.
    first_R = block_R * size
    place_RK = first_R[:, None].clamp(max=vocabulary - size) + torch.arange(size, device=device)
    inside_RK = scaled_RV.gather(1, place_RK).masked_fill_(place_RK < first_R[:, None], -torch.inf)
    best_R, close_R = _argmax(inside_RK + streams.gumbel(place_RK.cpu().numpy()).to(device), gap)
    return place_RK.gather(1, best_R[:, None])[:, 0], narrow_R | close_R


def _argmax(values_RV: torch.Tensor, gap: float = NARROW_GAP) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the argmax of each row, and whether the second largest value is closer than `gap`."""
    if values_RV.shape[1] == 1:
        return values_RV.new_zeros(len(values_RV), dtype=torch.long), values_RV.isnan()[:, 0]
    best = values_RV.topk(2, dim=-1)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1] < gap


def _with_logprobs(
    scaled_RV: torch.Tensor, logsums_RB: torch.Tensor, tokens_R: torch.Tensor, narrow_R: torch.Tensor
) -> Draw:
    """Return the draws with log-probabilities normalized over the whole vocabulary."""
    chosen_R = scaled_RV.gather(1, tokens_R[:, None])[:, 0]
    return Draw(tokens_R, chosen_R - logsums_RB.logsumexp(-1), narrow_R)
