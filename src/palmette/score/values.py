"""From what a reward model computes for a step to the step's score in [0, 1]."""

import math

GRID = 1 / 64
"""Model outputs are rounded to multiples of this, so that a score is the same whatever else is in the batch: the batch
changes a logit by about 1e-5, which could change how a strategy breaks ties. As probabilities, two neighboring
multiples differ by at most 1.6%."""

GAIN_SCALE = 4.0
"""Steepness of the sigmoid of `gain`. A step whose tokens the larger model finds e^0.25 times as likely each scores
0.73."""


def on_grid(value: float) -> float:
    """Return the nearest multiple of GRID."""
    return round(value / GRID) * GRID


def sigmoid(logit: float) -> float:
    """Return the probability of a logit; the softmax of two logits is the sigmoid of their difference."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else 1 - 1 / (1 + math.exp(logit))


def likelihood(mean_logprob: float) -> float:
    """Return the geometric mean of the probabilities of a step's tokens, from the mean of their logarithms."""
    return math.exp(min(0.0, mean_logprob))


def gain(large: float, small: float) -> float:
    """Return the score for the geometric means of the probabilities that two models give to a step's tokens.

    0.5 where both models expect the step alike, 0 where one of them could not read it.
    """
    if not large or not small:
        return 0.0
    return (1 + math.tanh(GAIN_SCALE / 2 * (math.log(large) - math.log(small)))) / 2
