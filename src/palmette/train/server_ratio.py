"""Tokens as likely to the learner as to the server that generated them? Measured, and corrected in the advantages.

Two engines with the same weights give tokens slightly different probabilities. With r = learner / server, the loss of a
token is multiplied by min(r, cut) (truncated importance sampling, as verl does, whose cut is 2), or by r up to the cut
and 0 above it (as TRL's token_mask). The policy terms of all algorithms are proportional to the advantage: so is that.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from palmette.errors import RunError
from palmette.train.samples import Sample

Correction = Literal["truncate", "mask"]


def corrected(
    samples: Sequence[Sample], learner_logprobs: Sequence[Sequence[float]], how: Correction, cut: float
) -> tuple[list[Sample], dict[str, float]]:
    """Return the samples with corrected advantages and the learner's log-probabilities as old ones, and statistics.

    Statistics are those of the ratios of all tokens that count: smallest, mean, largest, and the share above the cut.
    Raises RunError where a ratio is not finite.
    """
    changed: list[Sample] = []
    every: list[float] = []
    for sample, own in zip(samples, learner_logprobs, strict=True):
        assert sample.old_logprobs is not None, "every sample of a rollout has log-probabilities"
        ratios = [_ratio(learner, server) for learner, server in zip(own, sample.old_logprobs, strict=True)]
        every += sample.counted(ratios)
        advantages = tuple(
            advantage * _weight(ratio, how, cut) for advantage, ratio in zip(sample.advantages, ratios, strict=True)
        )
        changed.append(replace(sample, advantages=advantages, old_logprobs=tuple(own)))
    numbers = {
        "server_ratio_low": min(every),
        "server_ratio": math.fsum(every) / len(every),
        "server_ratio_high": max(every),
        "server_ratio_cut": sum(ratio > cut for ratio in every) / len(every),
    }
    return changed, numbers


def _ratio(learner: float, server: float) -> float:
    try:
        return math.exp(learner - server)
    except OverflowError:
        raise RunError(
            f"a token has the log-probability {learner:.4g} in this process and {server:.4g} on its server: they do "
            f"not have the same weights, or the server's log-probabilities mean something else"
        ) from None


def _weight(ratio: float, how: Correction, cut: float) -> float:
    if ratio <= cut:
        return ratio
    return cut if how == "truncate" else 0.0
