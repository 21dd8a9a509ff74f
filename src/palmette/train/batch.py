"""A micro-batch as tensors: rows padded on the right, and the hidden state that predicts each response token.

Padding comes after all tokens of a sample and attention is causal, so there is no attention mask.
Shapes: R rows, L positions, T response tokens of all rows that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from palmette.train.samples import Sample


@dataclass(frozen=True)
class Batch:
    """A micro-batch. `chosen_T` are the response tokens that count.

    `places_T` are indices into the R * L hidden states: that of the position before a token predicts the token. `old_T`
    and `reference_T` are log-probabilities of the tokens, None if the samples have none.
    """

    tokens_RL: torch.Tensor
    places_T: torch.Tensor
    chosen_T: torch.Tensor
    advantages_T: torch.Tensor
    old_T: torch.Tensor | None
    reference_T: torch.Tensor | None


def make_batch(samples: Sequence[Sample], *, device: torch.device, dtype: torch.dtype) -> Batch:
    """Return the samples as one micro-batch on a device, with advantages and log-probabilities in `dtype`."""
    length = max(sample.fed_tokens for sample in samples)
    rows: list[list[int]] = []
    places: list[int] = []
    chosen: list[int] = []
    advantages: list[float] = []
    old: list[float] = []
    reference: list[float] = []
    for row, sample in enumerate(samples):
        tokens = [*sample.prompt, *sample.response[:-1]]
        rows.append(tokens + [0] * (length - len(tokens)))  # Any token: the outputs at padding are not used.
        first = row * length + len(sample.prompt) - 1
        places += sample.counted(range(first, first + len(sample.response)))
        chosen += sample.counted(sample.response)
        advantages += sample.counted(sample.advantages)
        old += sample.counted(sample.old_logprobs or ())
        reference += sample.counted(sample.reference_logprobs or ())

    def floats(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Batch(
        tokens_RL=torch.tensor(rows, device=device),
        places_T=torch.tensor(places, device=device),
        chosen_T=torch.tensor(chosen, device=device),
        advantages_T=floats(advantages),
        old_T=floats(old) if old else None,
        reference_T=floats(reference) if reference else None,
    )
