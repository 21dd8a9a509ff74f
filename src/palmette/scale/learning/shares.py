"""Decides which rank computes which samples of an update, in which passes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from palmette.train.samples import Sample, micro_batches


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of one rank. If `is_idle`, the rank has no samples left and its loss is 0.

    All ranks make every pass together, because weights are gathered from all of them and gradients summed over them.
    """

    samples: list[Sample]
    is_idle: bool = False


def passes_of(samples: Sequence[Sample], *, ranks: int, micro_batch_tokens: int) -> list[list[Pass]]:
    """Return the passes of every rank, the same number for each. Every sample is in one pass of one rank.

    Raises BudgetError if a sample is longer than `micro_batch_tokens`.
    """
    shared = [_batched(share, micro_batch_tokens) for share in _shares(samples, ranks)]
    most = max(len(passes) for passes in shared)
    shortest = min(samples, key=lambda sample: sample.fed_tokens)
    idle = Pass([replace(shortest, weight=0.0)], is_idle=True)
    return [passes + [idle] * (most - len(passes)) for passes in shared]


def _shares(samples: Sequence[Sample], ranks: int) -> list[list[Sample]]:
    """Give each sample, the longest first, to the rank with the fewest tokens; a rank keeps the order of its own."""
    loads = [0] * ranks
    owned: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(samples)), key=lambda index: -samples[index].fed_tokens):
        rank = loads.index(min(loads))
        loads[rank] += samples[index].fed_tokens
        owned[rank].append(index)
    return [[samples[index] for index in sorted(indices)] for indices in owned]


def _batched(samples: list[Sample], micro_batch_tokens: int) -> list[Pass]:
    return [Pass(batch) for batch in micro_batches(samples, micro_batch_tokens)] if samples else []
