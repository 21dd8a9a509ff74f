"""Ratios of whole responses, from those of their tokens.

Shapes: T response tokens that count, S samples.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import torch

from palmette.train.update.token_batch import TokenBatch


def sequence_logratios(tokens: TokenBatch, *, mean: bool) -> torch.Tensor:
    """Return, for each token, the sum or the mean of logprob - old over all tokens of its sample, with gradients."""
    old_T = tokens.logprobs_T.detach() if tokens.old_T is None else tokens.old_T
    logratios_T = tokens.logprobs_T - old_T
    samples = int(tokens.sequence_T[-1]) + 1
    sums_S = logratios_T.new_zeros(samples).index_add(0, tokens.sequence_T, logratios_T)
    if mean:
        ones_T = torch.ones_like(logratios_T)
        sums_S = sums_S / ones_T.new_zeros(samples).index_add(0, tokens.sequence_T, ones_T)
    return sums_S.index_select(0, tokens.sequence_T)
