"""Draws one token per row, each row from a random stream of its own.

Shapes: R rows, V vocabulary, B blocks of the vocabulary, K candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from palmette.engine.cuts import Sampling, cut
from palmette.engine.limits import DRAWN_BLOCK

NARROW_GAP = 4e-4
"""Two candidates closer than this in perturbed logits may swap when the batch changes.

Measured on CPU in float32: what the batch adds to the logits of one row differs between two tokens by up to 7e-6
(seedling) and 8e-5 (SmolLM2-135M, 128 rows). A gap this narrow comes up once in 1,000 to 5,000 tokens.
"""


class Draw(NamedTuple):
    """Tokens drawn for R rows, their log-probabilities, and which draws were too close to call.

    Log-probabilities are those of the softmax of logits / `Sampling.logprob_temperature` before any cut. One that is
    not finite tells of logits that are not.
    """

    tokens_R: torch.Tensor
    logprobs_R: torch.Tensor
    narrow_R: torch.Tensor


@dataclass(frozen=True)
class Streams:
    """Where R rows take their random numbers from: a row's seed and the token's place in its step.

    Nothing is kept between tokens: a row that is set aside and computed again later goes on as if it had not been.
    """

    seeds: Sequence[int]
    places: Sequence[int]

    def gumbel(self, numbers: np.ndarray) -> torch.Tensor:
        """Return Gumbel noise, a pure function of each row's stream and of the numbers given for all rows or each.

        Always drawn on the CPU, so that devices agree.
        """
        streams_R = _scrambled(np.array(self.seeds, dtype=np.uint64) + np.array(self.places, dtype=np.uint64) * _GOLDEN)
        bits = _scrambled(streams_R[:, None] + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        # The upper 32 bits as a number inside (0, 1); float32 is finest near 0, where the largest noise comes from.
        uniform = torch.from_numpy((bits >> np.uint64(32)).astype(np.float32)).add_(0.5).mul_(2.0**-32)
        return uniform.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_().log_().neg_()


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _scrambled(values: Any) -> Any:
    """Mix 64-bit numbers as SplitMix64 does (Steele, Lea, Flood 2014). Numbers wrap around."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw(logits_RV: torch.Tensor, streams: Streams, sampling: Sampling) -> Draw:
    """Draw a token for each row: the largest of logits / temperature + Gumbel noise is an exact sample.

    At temperature 0 the likeliest token is taken. Cut tokens cannot win, except that a token on the edge of the cut
    marks its row as narrow.
    """
    if sampling.temperature == 0:
        return _with_logprobs(logits_RV, _masses(logits_RV)[0], *_largest(logits_RV))
    scaled_RV = logits_RV if sampling.temperature == 1 else logits_RV / sampling.temperature
    if not sampling.cuts:
        masses = _masses(scaled_RV)
        return _with_logprobs(scaled_RV, masses[0], *_race(scaled_RV, masses, streams))
    sure_R, floor_R, doubtful_R = cut(scaled_RV, sampling, NARROW_GAP)
    tokens_R, narrow_R = _race_from(scaled_RV, floor_R, streams)
    for edge_R in (sure_R, doubtful_R):
        narrow_R = narrow_R | (_race_from(scaled_RV, edge_R, streams)[0] != tokens_R)
    return _with_logprobs(scaled_RV, _masses(scaled_RV)[0], tokens_R, narrow_R)


def _race_from(scaled_RV: torch.Tensor, floor_R: torch.Tensor, streams: Streams) -> tuple[torch.Tensor, torch.Tensor]:
    kept_RV = scaled_RV.masked_fill(scaled_RV < floor_R[:, None], -torch.inf)
    return _race(kept_RV, _masses(kept_RV), streams)


def _masses(scaled_RV: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the logarithm of each block's mass and how many tokens a whole block has."""
    vocabulary = scaled_RV.shape[1]
    if vocabulary <= DRAWN_BLOCK:
        return scaled_RV.logsumexp(-1, keepdim=True), vocabulary
    whole = vocabulary // DRAWN_BLOCK * DRAWN_BLOCK
    top_R1 = scaled_RV.amax(-1, keepdim=True)
    shares_RV = (scaled_RV - top_R1).exp_()
    masses_RB = shares_RV[:, :whole].reshape(len(shares_RV), -1, DRAWN_BLOCK).sum(-1)
    if whole < vocabulary:
        masses_RB = torch.cat([masses_RB, shares_RV[:, whole:].sum(-1, keepdim=True)], dim=1)
    return masses_RB.log_().add_(top_R1), DRAWN_BLOCK


def _race(
    scaled_RV: torch.Tensor, masses: tuple[torch.Tensor, int], streams: Streams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that win and which races were narrow: first between blocks, then inside the block that won."""
    (masses_RB, size), vocabulary = masses, scaled_RV.shape[1]
    device, blocks = scaled_RV.device, masses_RB.shape[1]
    if blocks == 1:
        return _largest(scaled_RV + streams.gumbel(np.arange(vocabulary)).to(device))
    block_R, narrow_R = _largest(masses_RB + streams.gumbel(vocabulary + np.arange(blocks)).to(device))
    # A short last block is read from further left, its first tokens hidden: they belong to the block before.
    first_R = block_R * size
    place_RK = first_R[:, None].clamp(max=vocabulary - size) + torch.arange(size, device=device)
    inside_RK = scaled_RV.gather(1, place_RK).masked_fill_(place_RK < first_R[:, None], -torch.inf)
    best_R, close_R = _largest(inside_RK + streams.gumbel(place_RK.cpu().numpy()).to(device))
    return place_RK.gather(1, best_R[:, None])[:, 0], narrow_R | close_R


def _largest(values_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the largest values and which have another one close behind."""
    if values_RV.shape[1] == 1:
        return values_RV.new_zeros(len(values_RV), dtype=torch.long), values_RV.isnan()[:, 0]
    best = values_RV.topk(2, dim=-1)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1] < NARROW_GAP


def _with_logprobs(
    scaled_RV: torch.Tensor, masses_RB: torch.Tensor, tokens_R: torch.Tensor, narrow_R: torch.Tensor
) -> Draw:
    chosen_R = scaled_RV.gather(1, tokens_R[:, None])[:, 0]
    return Draw(tokens_R, chosen_R - masses_RB.logsumexp(-1), narrow_R)
