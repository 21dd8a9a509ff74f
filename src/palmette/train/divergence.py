"""KL divergence from the reference as a penalty in the reward: one number for each token, without torch."""

import math
from collections.abc import Sequence
from typing import Literal

Estimator = Literal["k1", "k2", "k3"]
"""Schulman's estimators of a KL divergence from one sample."""


def divergence(logprob: float, reference: float, estimator: Estimator) -> float:
    """Return the estimate at one token: with d = reference - logprob, k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1."""
    difference = reference - logprob
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference**2 / 2
    return math.expm1(difference) - difference


def penalties(
    logprobs: Sequence[float], reference: Sequence[float], weight: float, estimator: Estimator
) -> tuple[float, ...]:
    """Return what each token of a response loses of its reward: weight x divergence."""
    pairs = zip(logprobs, reference, strict=True)
    return tuple(weight * divergence(logprob, against, estimator) for logprob, against in pairs)
