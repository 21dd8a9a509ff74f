"""Losses of training on rows, as a learner takes them: cross-entropy of tokens, and of labels of steps.

Shapes: T tokens that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from palmette.train.update.loss import PolicyLosses
from palmette.train.update.token_batch import TokenBatch


def answer_losses(tokens: TokenBatch) -> PolicyLosses:
    """Return the cross-entropy of each token, its negative log-probability, times its weight: its advantage."""
    return _losses(-tokens.advantages_T * tokens.logprobs_T)


def label_losses(tokens: TokenBatch) -> PolicyLosses:
    """Return the cross-entropy between the label of each step, `returns_T`, and the sigmoid of the head's value.

    A label may be any number from 0 to 1.
    """
    assert tokens.values_T is not None and tokens.returns_T is not None
    return _losses(binary_cross_entropy_with_logits(tokens.values_T, tokens.returns_T, reduction="none"))


def _losses(loss_T: torch.Tensor) -> PolicyLosses:
    """Return losses that have no ratio: it is 1 everywhere, and nothing is clipped."""
    return PolicyLosses(loss_T, torch.ones_like(loss_T), torch.zeros_like(loss_T, dtype=torch.bool))
