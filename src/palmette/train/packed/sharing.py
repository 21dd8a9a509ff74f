"""Decides how an update shares prefixes: not at all, in packed batches, or depth first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from palmette.errors import ConfigError
from palmette.train.packed.passes import PASS_TOKENS, check_longest, depth_first, distinct_tokens, packed_batches
from palmette.train.packed.trie import build_trie
from palmette.train.samples import Sample, micro_batches, padded_tokens

Mode = Literal["off", "packed", "depth_first"]
Sharing = Literal["auto", "off", "packed", "depth_first"]
"""How prefixes are shared. `off`: rows of whole samples. `packed`: batches in which each distinct prefix is computed
once; a prefix is repeated where the limit of tokens cuts. `depth_first`: each is computed once, and those above stay
in memory as long as anything below them is computed. `auto`: what computes the fewest tokens."""

_LEAST_GAIN = 0.1
"""`auto` shares if that saves this share of the tokens: attention by tiles is a little slower than by whole rows."""


@dataclass(frozen=True)
class Batches:
    """Samples in the batches in which they are computed, in this mode."""

    mode: Mode
    batches: list[list[Sample]]


def check_sharing(sharing: str) -> None:
    """Raise ConfigError if there is no such way to share."""
    if sharing not in get_args(Sharing):
        raise ConfigError(f"sharing is {sharing!r}: give one of {', '.join(get_args(Sharing))}")


def batches_of(samples: Sequence[Sample], most_tokens: int, sharing: Sharing) -> Batches:
    """Cut samples into batches of which at most `most_tokens` tokens are held at a time.

    Raises BudgetError if a sample alone has more tokens.
    """
    if sharing == "off":
        return Batches("off", micro_batches(samples, most_tokens))
    check_longest(samples, most_tokens)
    if sharing == "depth_first":
        return Batches("depth_first", [list(samples)])
    packed = Batches("packed", packed_batches(samples, most_tokens))
    if sharing == "packed":
        return packed
    plain = Batches("off", micro_batches(samples, most_tokens))
    costs = [
        (_passes_cost([padded_tokens(batch) for batch in plain.batches]) * (1 - _LEAST_GAIN), plain),
        (_passes_cost([distinct_tokens(batch) for batch in packed.batches]), packed),
    ]
    if len(packed.batches) > 1:  # Else both ways to share are the same.
        steps = depth_first(build_trie(samples), most_tokens)
        sizes = [step.last - step.first for step in steps if step.kind != "close"]
        costs.append((_passes_cost(sizes), Batches("depth_first", [list(samples)])))
    return min(costs, key=lambda pair: pair[0])[1]


def _passes_cost(sizes: Sequence[int]) -> float:
    """Return what passes of so many tokens cost, in tokens."""
    return sum(sizes) + PASS_TOKENS * len(sizes)
