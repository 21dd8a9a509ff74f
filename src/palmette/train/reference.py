"""Log-probabilities of responses without gradients: under a reference model, or the policy before an update.

Shapes: R rows, L positions, D hidden size, T response tokens of a micro-batch.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from palmette.errors import PalmetteError
from palmette.train.batch import make_batch
from palmette.train.logprobs import token_logprobs
from palmette.train.model_parts import Head, body_of, head_of
from palmette.train.samples import Sample, check_tokens, micro_batches, shared_temperature


@torch.no_grad()
def response_logprobs(
    model: Any, samples: Sequence[Sample], *, micro_batch_tokens: int, temperature: float | None = None
) -> list[tuple[float, ...]]:
    """Return the log-probability of every response token of each sample, in order, masked tokens included.

    They are computed at `temperature`, by default at that of the samples; raises PalmetteError if samples then differ.
    The model is in eval mode meanwhile. Inside `memory.offload.streamed` only two layers are in memory at a time.
    """
    if not samples:
        return []
    chosen = shared_temperature(samples) if temperature is None else temperature
    if not 0 < chosen < math.inf:
        raise PalmetteError(f"log-probabilities cannot be at temperature {chosen}: give 1 for greedy decoding")
    head = head_of(model, chosen)
    check_tokens(samples, len(head.weight_VD))
    was_training = model.training
    model.eval()
    try:
        return _logprobs(model, head, samples, micro_batch_tokens)
    finally:
        model.train(was_training)


def _logprobs(model: Any, head: Head, samples: Sequence[Sample], micro_batch_tokens: int) -> list[tuple[float, ...]]:
    body = body_of(model)
    results: list[tuple[float, ...]] = []
    for micro_batch in micro_batches(samples, micro_batch_tokens):
        every_token = [replace(sample, mask=None) for sample in micro_batch]
        batch = make_batch(every_token, device=model.device, dtype=torch.float32)
        hidden_RLD = body(input_ids=batch.tokens_RL, use_cache=False).last_hidden_state
        hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, batch.places_T)
        del hidden_RLD
        logprobs = token_logprobs(hidden_TD, head, batch.chosen_T)[0].tolist()
        for sample in micro_batch:
            results.append(tuple(logprobs[: len(sample.response)]))
            del logprobs[: len(sample.response)]
    return results
