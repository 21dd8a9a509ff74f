"""Log-probabilities of responses without gradients, under a reference or the policy; and a critic's values.

Shapes: R rows, L positions, D hidden size, T response tokens of a micro-batch.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from palmette.errors import PalmetteError
from palmette.memory.guard import RunPieces, run_whole
from palmette.train.logprobs import token_logprobs
from palmette.train.model_parts import Head, body_of, head_of
from palmette.train.packed.backward import run_forward
from palmette.train.packed.check import possible_sharing
from palmette.train.packed.forward import TrieModel
from palmette.train.packed.passes import depth_first
from palmette.train.packed.sharing import Sharing, batches_of, check_sharing
from palmette.train.packed.trie import build_trie
from palmette.train.samples import Sample, check_tokens, shared_temperature
from palmette.train.update.batch import make_rows


@torch.no_grad()
def response_logprobs(
    model: Any,
    samples: Sequence[Sample],
    *,
    micro_batch_tokens: int,
    temperature: float | None = None,
    sharing: Sharing = "auto",
    run_pieces: RunPieces = run_whole,
) -> list[tuple[float, ...]]:
    """Return the log-probability of every response token of each sample, in order, masked tokens included.

    They are computed at `temperature`, by default at that of the samples; raises PalmetteError if samples then differ.
    Prefixes that samples share are computed once, as `sharing` says, with a model that can do that. `run_pieces` may
    cut a micro-batch that ran out of memory. The model is in eval mode meanwhile. Inside `memory.offload.streamed` only
    two layers are in memory at a time.
    """
    check_sharing(sharing)
    if not samples:
        return []
    chosen = shared_temperature(samples) if temperature is None else temperature
    if not 0 < chosen < math.inf:
        raise PalmetteError(f"log-probabilities cannot be at temperature {chosen}: give 1 for greedy decoding")
    return _of_responses(model, head_of(model, chosen), None, samples, micro_batch_tokens, sharing, run_pieces)


@torch.no_grad()
def response_values(
    model: Any,
    value_head: nn.Module,
    samples: Sequence[Sample],
    *,
    micro_batch_tokens: int,
    sharing: Sharing = "auto",
    run_pieces: RunPieces = run_whole,
) -> list[tuple[float, ...]]:
    """Return a critic's value before every response token of each sample, in order, masked tokens included.

    Prefixes are shared and micro-batches cut as in `response_logprobs`; no logits are computed.
    """
    if not samples:
        return []
    return _of_responses(model, head_of(model), value_head, samples, micro_batch_tokens, sharing, run_pieces)


def _of_responses(
    model: Any,
    head: Head,
    value_head: nn.Module | None,
    samples: Sequence[Sample],
    micro_batch_tokens: int,
    sharing: Sharing,
    run_pieces: RunPieces,
) -> list[tuple[float, ...]]:
    """Return a number for every response token: its log-probability, or with a value head the value before it."""
    check_sharing(sharing)
    check_tokens(samples, len(head.weight_VD))
    every_token = [replace(sample, mask=None) for sample in samples]
    was_training = model.training
    model.eval()
    try:
        possible, _ = possible_sharing(model, sharing)
        planned = batches_of(every_token, micro_batch_tokens, possible)
        found: dict[int, tuple[float, ...]] = {}
        for batch in planned.batches:
            in_all = _fed_tokens(batch)

            def work(piece: Sequence[Sample], in_all: int = in_all) -> list[tuple[float, ...]]:
                if planned.mode == "off":
                    return _on_rows(model, head, value_head, piece)
                # Depth first, a piece may hold its share of the limit.
                longest = max(sample.fed_tokens for sample in piece)
                share = max(longest, micro_batch_tokens * _fed_tokens(piece) // in_all)
                return _on_trie(model, head, value_head, piece, share if planned.mode == "depth_first" else None)

            pieces = run_pieces(batch, work, cost=lambda sample: sample.fed_tokens, group=lambda sample: sample.group)
            rows = [row for piece in pieces for row in piece]
            found.update((id(sample), row) for sample, row in zip(batch, rows, strict=True))
        return [found[id(sample)] for sample in every_token]
    finally:
        model.train(was_training)


def _fed_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.fed_tokens for sample in samples)


def _on_rows(
    model: Any, head: Head, value_head: nn.Module | None, samples: Sequence[Sample]
) -> list[tuple[float, ...]]:
    """Compute each sample as a row of its own."""
    rows = make_rows(samples, model.device)
    hidden_RLD = body_of(model)(input_ids=rows.tokens_RL, use_cache=False).last_hidden_state
    hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, rows.places_T)
    del hidden_RLD
    told_T = token_logprobs(hidden_TD, head, rows.chosen_T)[0] if value_head is None else value_head(hidden_TD)
    told = told_T.tolist()
    ends = list(accumulate(len(sample.response) for sample in samples))
    return [tuple(told[end - len(sample.response) : end]) for end, sample in zip(ends, samples, strict=True)]


def _on_trie(
    model: Any, head: Head, value_head: nn.Module | None, samples: Sequence[Sample], most_tokens: int | None
) -> list[tuple[float, ...]]:
    """Compute each distinct prefix once, in one pass or depth first with at most so many tokens at a time."""
    trie = build_trie(samples)
    steps = depth_first(trie, len(trie.tokens) if most_tokens is None else most_tokens)
    values = value_head is not None
    told = run_forward(TrieModel(model, head, value_head=value_head, values_only=values), trie, steps, values=values)
    found: list[tuple[float, ...]] = [()] * len(samples)
    for index, places in zip(trie.order, trie.predicted, strict=True):
        found[index] = tuple(told[place] for place in places)
    return found
