"""Samples as tensors: rows padded on the right, and what samples say of their response tokens.

Padding comes after all tokens of a sample and attention is causal, so there is no attention mask.
Shapes: R rows, L positions, T response tokens of all rows that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from palmette.train.samples import Sample
from palmette.train.update.token_batch import TokenBatch


@dataclass(frozen=True)
class Rows:
    """Samples as rows of tokens. `chosen_T` are the response tokens that count.

    `places_T` are indices into the R * L hidden states: that of the position before a token predicts the token.
    """

    tokens_RL: torch.Tensor
    places_T: torch.Tensor
    chosen_T: torch.Tensor


def make_rows(samples: Sequence[Sample], device: torch.device) -> Rows:
    """Return the samples as rows of one length."""
    length = max(sample.fed_tokens for sample in samples)
    rows: list[list[int]] = []
    places: list[int] = []
    chosen: list[int] = []
    for row, sample in enumerate(samples):
        tokens = [*sample.prompt, *sample.response[:-1]]
        rows.append(tokens + [0] * (length - len(tokens)))  # Any token: the outputs at padding are not used.
        first = row * length + len(sample.prompt) - 1
        places += sample.counted(range(first, first + len(sample.response)))
        chosen += sample.counted(sample.response)
    return Rows(
        tokens_RL=torch.tensor(rows, device=device),
        places_T=torch.tensor(places, device=device),
        chosen_T=torch.tensor(chosen, device=device),
    )


@dataclass(frozen=True)
class Given:
    """What samples say of their response tokens that count, sample by sample; None for what they do not have.

    `weights_T` is the weight of each token's sample, `sequence_T` the index of the sample.
    """

    advantages_T: torch.Tensor
    weights_T: torch.Tensor
    sequence_T: torch.Tensor
    old_T: torch.Tensor | None
    reference_T: torch.Tensor | None
    old_values_T: torch.Tensor | None
    returns_T: torch.Tensor | None

    def with_outputs(
        self,
        logprobs_T: torch.Tensor,
        entropies_T: torch.Tensor,
        values_T: torch.Tensor | None,
        *,
        on_policy: bool,
    ) -> TokenBatch:
        """Return what the loss is computed from. If `on_policy`, without the old log-probabilities."""
        return TokenBatch(
            logprobs_T=logprobs_T,
            entropies_T=entropies_T,
            advantages_T=self.advantages_T,
            old_T=None if on_policy else self.old_T,
            reference_T=self.reference_T,
            sequence_T=self.sequence_T,
            values_T=values_T,
            old_values_T=self.old_values_T,
            returns_T=self.returns_T,
        )


def given_by(samples: Sequence[Sample], *, device: torch.device, dtype: torch.dtype) -> Given:
    """Return what the samples say of their tokens, on a device, numbers in `dtype`."""

    def numbers(name: str) -> torch.Tensor | None:
        if any(getattr(sample, name) is None for sample in samples):
            return None
        values = [value for sample in samples for value in sample.counted(getattr(sample, name))]
        return torch.tensor(values, dtype=dtype, device=device)

    advantages_T = numbers("advantages")
    assert advantages_T is not None
    counts = torch.tensor([sample.counted_tokens for sample in samples], device=device)
    weights = torch.tensor([sample.weight for sample in samples], dtype=dtype, device=device)
    # With the number of tokens given, repeat_interleave works without reading its counts, as fake tensors have none.
    repeats = {"output_size": len(advantages_T)}
    return Given(
        advantages_T=advantages_T,
        weights_T=weights.repeat_interleave(counts, **repeats),
        sequence_T=torch.arange(len(samples), device=device).repeat_interleave(counts, **repeats),
        old_T=numbers("old_logprobs"),
        reference_T=numbers("reference_logprobs"),
        old_values_T=numbers("old_values"),
        returns_T=numbers("returns"),
    )
