"""Samples laid out as tensors: rows padded on the right, and where each response token is asked for.

Padding comes after every token of a sample, and attention only looks back: it needs no mask, none is held.
Shapes: R rows, L places, T response tokens of all rows that count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from palmette.train.samples import Sample


@dataclass(frozen=True)
class Batch:
    """A micro-batch. `places_T` count through the R x L hidden states; the one before a token is asked for it."""

    tokens_RL: torch.Tensor
    places_T: torch.Tensor
    chosen_T: torch.Tensor
    advantages_T: torch.Tensor
    old_T: torch.Tensor | None
    reference_T: torch.Tensor | None


def make_batch(samples: Sequence[Sample], *, device: torch.device, dtype: torch.dtype) -> Batch:
    """Return the samples as one micro-batch on a device, its real numbers in `dtype`."""
    length = max(sample.fed_tokens for sample in samples)
    rows: list[list[int]] = []
    places: list[int] = []
    chosen: list[int] = []
    advantages: list[float] = []
    old: list[float] = []
    reference: list[float] = []
    for row, sample in enumerate(samples):
        tokens = [*sample.prompt, *sample.response[:-1]]
        rows.append(tokens + [0] * (length - len(tokens)))  # Any token: what is computed there is never asked for.
        first = row * length + len(sample.prompt) - 1
        places += sample.counted(range(first, first + len(sample.response)))
        chosen += sample.counted(sample.response)
        advantages += sample.counted(sample.advantages)
        old += sample.counted(sample.old_logprobs or ())
        reference += sample.counted(sample.reference_logprobs or ())

    def numbers(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Batch(
        tokens_RL=torch.tensor(rows, device=device),
        places_T=torch.tensor(places, device=device),
        chosen_T=torch.tensor(chosen, device=device),
        advantages_T=numbers(advantages),
        old_T=numbers(old) if old else None,
        reference_T=numbers(reference) if reference else None,
    )
