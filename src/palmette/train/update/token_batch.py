"""What a loss is computed from: log-probabilities of response tokens with their advantages, as tensors.

Shapes: T response tokens that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenBatch:
    """The counted response tokens of whole samples: all counted tokens of a sample are in one batch, in their order.

    Only `logprobs_T`, `entropies_T` and `values_T` carry gradients. `sequence_T` tells which sample of the batch a
    token belongs to, from 0 without gaps: tokens of one sample are neighbors. `old_T` is None where the ratio is
    exactly 1, `reference_T` where the samples have no log-probabilities of a reference model. With a critic, `values_T`
    is its estimate at the state before each token, `old_values_T` that of the critic that judged the rollout,
    `returns_T` what the estimate is trained to be; all three are None without one.
    """

    logprobs_T: torch.Tensor
    entropies_T: torch.Tensor
    advantages_T: torch.Tensor
    old_T: torch.Tensor | None
    reference_T: torch.Tensor | None
    sequence_T: torch.Tensor
    values_T: torch.Tensor | None = None
    old_values_T: torch.Tensor | None = None
    returns_T: torch.Tensor | None = None
