"""Log-probabilities of responses without gradients: under a reference model, or the policy before an update.

Shapes: R rows, L positions, D hidden size, T response tokens of a micro-batch.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from palmette.errors import PalmetteError
from palmette.memory.guard import RunPieces, run_whole
from palmette.train.batch import make_rows
from palmette.train.logprobs import token_logprobs
from palmette.train.model_parts import Head, body_of, head_of
from palmette.train.packed.backward import run_forward
from palmette.train.packed.check import possible_sharing
from palmette.train.packed.forward import TrieModel
from palmette.train.packed.passes import depth_first
from palmette.train.packed.sharing import Sharing, batches_of, check_sharing
from palmette.train.packed.trie import build_trie
from palmette.train.samples import Sample, check_tokens, micro_batches, shared_temperature


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
    head = head_of(model, chosen)
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
                    return _on_rows(model, head, piece)
                # Depth first, a piece may hold its share of the limit.
                share = max(_longest(piece), micro_batch_tokens * _fed_tokens(piece) // in_all)
                return _on_trie(model, head, piece, share if planned.mode == "depth_first" else None)

            rows = _in_pieces(run_pieces, batch, work)
            found.update((id(sample), row) for sample, row in zip(batch, rows, strict=True))
        return [found[id(sample)] for sample in every_token]
    finally:
        model.train(was_training)


def _in_pieces(
    run_pieces: RunPieces, batch: Sequence[Sample], work: Callable[[Sequence[Sample]], list[tuple[float, ...]]]
) -> list[tuple[float, ...]]:
    """Return what `work` finds for each sample of a batch, in order."""
    results = run_pieces(batch, work, cost=lambda sample: sample.fed_tokens, group=lambda sample: sample.group)
    return [row for rows in results for row in rows]


def _fed_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.fed_tokens for sample in samples)


def _longest(samples: Sequence[Sample]) -> int:
    return max(sample.fed_tokens for sample in samples)


def _on_rows(model: Any, head: Head, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Compute each sample as a row of its own."""
    rows = make_rows(samples, model.device)
    hidden_RLD = body_of(model)(input_ids=rows.tokens_RL, use_cache=False).last_hidden_state
    hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, rows.places_T)
    del hidden_RLD
    return _by_sample(token_logprobs(hidden_TD, head, rows.chosen_T)[0].tolist(), samples)


def _on_trie(model: Any, head: Head, samples: Sequence[Sample], most_tokens: int | None) -> list[tuple[float, ...]]:
    """Compute each distinct prefix once, in one pass or depth first with at most so many tokens at a time."""
    trie = build_trie(samples)
    steps = depth_first(trie, len(trie.tokens) if most_tokens is None else most_tokens)
    logprobs = run_forward(TrieModel(model, head), trie, steps)
    found: list[tuple[float, ...]] = [()] * len(samples)
    for index, places in zip(trie.order, trie.predicted, strict=True):
        found[index] = tuple(logprobs[place] for place in places)
    return found


@torch.no_grad()
def response_values(
    model: Any,
    value_head: nn.Module,
    samples: Sequence[Sample],
    *,
    micro_batch_tokens: int,
    run_pieces: RunPieces = run_whole,
) -> list[tuple[float, ...]]:
    """Return a critic's value before every response token of each sample, in order, masked tokens included.

    `run_pieces` may cut a micro-batch that ran out of memory.
    """

    def work(piece: Sequence[Sample]) -> list[tuple[float, ...]]:
        rows = make_rows(piece, model.device)
        hidden_RLD = body_of(model)(input_ids=rows.tokens_RL, use_cache=False).last_hidden_state
        values = value_head(hidden_RLD.flatten(0, 1).index_select(0, rows.places_T)).flatten().tolist()
        return _by_sample(values, piece)

    found: list[tuple[float, ...]] = []
    was_training = model.training
    model.eval()
    try:
        for batch in micro_batches([replace(sample, mask=None) for sample in samples], micro_batch_tokens):
            found += _in_pieces(run_pieces, batch, work)
    finally:
        model.train(was_training)
    return found


def _by_sample(numbers: Sequence[float], samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Return the numbers of all response tokens sample by sample."""
    ends = list(accumulate(len(sample.response) for sample in samples))
    return [tuple(numbers[end - len(sample.response) : end]) for end, sample in zip(ends, samples, strict=True)]
