"""Log-probabilities of responses under a model that is not trained: the reference, or the policy before an update.

Shapes: R rows, L places, D hidden size, T response tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from palmette.train.batch import make_batch
from palmette.train.logprobs import token_logprobs
from palmette.train.model_parts import body_of, head_of
from palmette.train.samples import Sample, micro_batches, shared_temperature


@torch.no_grad()
def response_logprobs(
    model: Any, samples: Sequence[Sample], *, micro_batch_tokens: int, temperature: float | None = None
) -> list[tuple[float, ...]]:
    """Return one number for each response token of each sample, in their order, whether it counts or not.

    They are at `temperature`, without one at the samples' own, which has to be the same for all. Inside
    `memory.offload.streamed` the model is held two layers at a time.
    """
    head = head_of(model, shared_temperature(samples) if temperature is None else temperature)
    body = body_of(model)
    found: list[tuple[float, ...]] = []
    for samples_R in micro_batches(samples, micro_batch_tokens):
        every_token = [replace(sample, mask=None) for sample in samples_R]
        batch = make_batch(every_token, device=model.device, dtype=torch.float32)
        hidden_RLD = body(input_ids=batch.tokens_RL, use_cache=False).last_hidden_state
        hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, batch.places_T)
        del hidden_RLD
        logprobs = token_logprobs(hidden_TD, head, batch.chosen_T)[0].tolist()
        for sample in samples_R:
            found.append(tuple(logprobs[: len(sample.response)]))
            del logprobs[: len(sample.response)]
    return found
