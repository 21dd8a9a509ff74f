"""Training samples: responses with their advantages, split into micro-batches under a limit of tokens."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import TypeVar

from palmette.errors import BudgetError, PalmetteError

Value = TypeVar("Value")

_ALL_OR_NONE = ("old_logprobs", "reference_logprobs", "old_values", "returns")
"""Numbers for each response token that all samples of an update have, or none of them."""


@dataclass(frozen=True)
class Sample:
    """One response to a prompt; `advantages`, log-probabilities and `mask` have one entry for each response token.

    One advantage for the whole response is written `(advantage,) * len(response)`. `old_logprobs` are those of the
    policy that generated the response (None: of the present policy), `reference_logprobs` those of the reference model
    for the KL divergence, both at `temperature`. Samples of one `group` share their prompt. `mask` is true for the
    tokens that count (None: all). The others are context: they add neither to the loss nor to the number of tokens by
    which sums are divided. An advantage of 0 masks nothing: its token counts, with its KL divergence and its entropy.
    Losses of the sample's tokens are multiplied by `weight`. With a critic, `old_values` are its estimates when the
    response was judged and `returns` what it is trained to estimate, at the state before each token.

    Raises PalmetteError if prompt or response is empty, a length is wrong, the mask counts no token, or `temperature`
    is not a finite number above 0.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    advantages: tuple[float, ...]
    group: Hashable = None
    old_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None
    temperature: float = 1.0
    mask: tuple[bool, ...] | None = None
    weight: float = 1.0
    old_values: tuple[float, ...] | None = None
    returns: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prompt or not self.response:
            raise PalmetteError("cannot learn from a sample without prompt or response: leave it out")
        for name in ("advantages", "mask", *_ALL_OR_NONE):
            values = getattr(self, name)
            if isinstance(values, (int, float)):
                raise PalmetteError(
                    f"{name} is {values}, not one for each response token: write ({values},) * len(response)"
                )
            if values is not None and len(values) != len(self.response):
                raise PalmetteError(f"{name} has {len(values)} numbers for {len(self.response)} response tokens")
        if not self.counted_tokens:
            raise PalmetteError("cannot learn from a sample whose mask counts no token: leave it out")
        if not 0 < self.temperature < math.inf:
            raise PalmetteError(f"a sample cannot be at temperature {self.temperature}: give 1 for greedy decoding")

    def counted(self, values: Sequence[Value]) -> list[Value]:
        """Return the values whose tokens count, of one value for each response token."""
        return list(values if self.mask is None else compress(values, self.mask))

    @property
    def counted_tokens(self) -> int:
        """The number of response tokens that count."""
        return len(self.counted(self.response))

    @property
    def fed_tokens(self) -> int:
        """The number of tokens that the model computes: all but the last, whose output predicts no token."""
        return len(self.prompt) + len(self.response) - 1


def padded_tokens(samples: Sequence[Sample]) -> int:
    """Return the number of tokens that a micro-batch of these samples computes, padding to the longest included."""
    return len(samples) * max(sample.fed_tokens for sample in samples)


def micro_batches(samples: Sequence[Sample], most_tokens: int) -> list[list[Sample]]:
    """Split the samples, in their order, into micro-batches of at most `most_tokens` tokens, padding included.

    Neighbors of one group stay together if they fit in one micro-batch. Raises BudgetError if a sample does not fit.
    """
    longest = max(sample.fed_tokens for sample in samples)
    if longest > most_tokens:
        raise BudgetError(
            f"a sample of {longest} tokens does not fit a micro-batch of {most_tokens}: "
            f"set micro_batch_tokens to {longest} or more"
        )
    batches: list[list[Sample]] = [[]]
    for _, neighbors in groupby(samples, key=lambda sample: sample.group):
        group = list(neighbors)
        if padded_tokens([*batches[-1], *group]) <= most_tokens:
            batches[-1] += group
            continue
        fits_whole = padded_tokens(group) <= most_tokens
        batches.append([])
        for sample in group:
            if not fits_whole and batches[-1] and padded_tokens([*batches[-1], sample]) > most_tokens:
                batches.append([])
            batches[-1].append(sample)
    return [batch for batch in batches if batch]


def shared_temperature(samples: Sequence[Sample]) -> float:
    """Return the temperature of all samples. Raises PalmetteError if they differ."""
    first = samples[0].temperature
    for index, sample in enumerate(samples):
        if sample.temperature != first:
            raise PalmetteError(
                f"sample {index} is at temperature {sample.temperature}, sample 0 at {first}: use separate calls"
            )
    return first


def check_update(samples: Sequence[Sample], *, with_reference: bool, vocabulary: int, temperature: float) -> None:
    """Raise PalmetteError unless a learner at this temperature can make one update of the samples.

    There has to be a sample, tokens must be in the vocabulary, temperatures those of the learner, numbers finite.
    `old_logprobs`, `reference_logprobs`, `old_values` and `returns` are in all samples or in none, `reference_logprobs`
    in all if `with_reference`.
    """
    if not samples:
        raise PalmetteError("an update needs one sample or more")
    check_tokens(samples, vocabulary)
    for index, sample in enumerate(samples):
        if sample.temperature != temperature:
            raise PalmetteError(
                f"sample {index} is at temperature {sample.temperature}, the learner at {temperature}: give "
                f"Learner temperature={sample.temperature}, or sample with policy.temperature {temperature}"
            )
        if not math.isfinite(sample.weight):
            raise PalmetteError(f"sample {index} has a weight of {sample.weight}: give a finite number")
        for name in ("advantages", *_ALL_OR_NONE):
            if not all(map(math.isfinite, getattr(sample, name) or ())):
                raise PalmetteError(f"sample {index} has {name} that are not finite")
    for name in _ALL_OR_NONE:
        having = sum(getattr(sample, name) is not None for sample in samples)
        if having not in (0, len(samples)):
            raise PalmetteError(f"{having} of {len(samples)} samples have {name}: give them to all or to none")
    if with_reference and samples[0].reference_logprobs is None:
        raise PalmetteError("the samples lack reference_logprobs: set kl_weight to 0 or add them")


def check_tokens(samples: Sequence[Sample], vocabulary: int) -> None:
    """Raise PalmetteError if a sample holds a token that is not in the vocabulary."""
    for index, sample in enumerate(samples):
        for token in (*sample.prompt, *sample.response):
            if not _is_token(token, vocabulary):
                raise PalmetteError(f"sample {index} holds the token {token!r}, the model has 0 to {vocabulary - 1}")


def _is_token(token: object, vocabulary: int) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocabulary
