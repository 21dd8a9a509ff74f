"""What an update learns from: sampled responses, packed into micro-batches under a cap on tokens."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import TypeVar

from palmette.errors import BudgetError, PalmetteError

Each = TypeVar("Each")


@dataclass(frozen=True)
class Sample:
    """One response to a prompt; advantages, log-probabilities and marks are one for each response token.

    One advantage for the whole response is written `(advantage,) * len(response)`. `old_logprobs` are those of the
    policy that wrote the response (absent: the policy as it is now), and `reference_logprobs` those of the model that
    it should stay close to, both at `temperature`. Samples of one `group` share their prompt. `mask` is true for the
    tokens that count (absent: all): the others are read and add neither to the loss nor to the count of tokens that
    sums are divided by. An advantage of 0 masks nothing: its token still counts, and so do its divergence and entropy.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    advantages: tuple[float, ...]
    group: Hashable = None
    old_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None
    temperature: float = 1.0
    mask: tuple[bool, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prompt or not self.response:
            raise PalmetteError("cannot learn from a sample without prompt or response: leave it out")
        for name in ("advantages", "old_logprobs", "reference_logprobs", "mask"):
            given = getattr(self, name)
            if isinstance(given, (int, float)):
                raise PalmetteError(f"{name} is {given}, not one for each token: write ({given},) * len(response)")
            if given is not None and len(given) != len(self.response):
                raise PalmetteError(f"{name} has {len(given)} numbers for {len(self.response)} response tokens")
        if not self.counted_tokens:
            raise PalmetteError("cannot learn from a sample whose mask counts no token: leave it out")
        if not 0 < self.temperature < math.inf:
            raise PalmetteError(f"a sample cannot be at temperature {self.temperature}: greedy ones are at 1")

    def counted(self, values: Sequence[Each]) -> list[Each]:
        """Return those of one value for each response token whose token counts."""
        return list(values if self.mask is None else compress(values, self.mask))

    @property
    def counted_tokens(self) -> int:
        """Count the response tokens that an update learns from."""
        return len(self.counted(self.response))

    @property
    def fed_tokens(self) -> int:
        """Count the tokens that go into the model: nothing is asked at the last one."""
        return len(self.prompt) + len(self.response) - 1


def padded_tokens(samples: Sequence[Sample]) -> int:
    """Count the tokens that a micro-batch of these computes, each row as long as the longest."""
    return len(samples) * max(sample.fed_tokens for sample in samples)


def micro_batches(samples: Sequence[Sample], most_tokens: int) -> list[list[Sample]]:
    """Cut the samples, in their order, into micro-batches of at most `most_tokens` with padding.

    Neighbors of one group stay together where they fit together. Raises BudgetError where one sample does not fit.
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
        whole = padded_tokens(group) <= most_tokens
        batches.append([])
        for sample in group:
            if not whole and batches[-1] and padded_tokens([*batches[-1], sample]) > most_tokens:
                batches.append([])
            batches[-1].append(sample)
    return [batch for batch in batches if batch]


def shared_temperature(samples: Sequence[Sample]) -> float:
    """Return the temperature that all samples are at; raise PalmetteError where they differ."""
    first = samples[0].temperature
    for place, sample in enumerate(samples):
        if sample.temperature != first:
            raise PalmetteError(
                f"sample {place} is at temperature {sample.temperature}, sample 0 at {first}: ask for them apart"
            )
    return first


def check_update(samples: Sequence[Sample], *, with_reference: bool, vocabulary: int, temperature: float) -> None:
    """Raise PalmetteError unless the samples can make one update together, by a learner at this temperature."""
    if not samples:
        raise PalmetteError("an update needs one sample or more")
    for place, sample in enumerate(samples):
        strange = next(
            (token for token in (*sample.prompt, *sample.response) if not _is_token(token, vocabulary)), None
        )
        if strange is not None:
            raise PalmetteError(f"sample {place} holds the token {strange!r}, the model knows 0 to {vocabulary - 1}")
        if sample.temperature != temperature:
            raise PalmetteError(
                f"sample {place} is at temperature {sample.temperature}, the learner at {temperature}: give "
                f"Learner temperature={sample.temperature}, or sample with policy.temperature {temperature}"
            )
        numbers = (*sample.advantages, *(sample.old_logprobs or ()), *(sample.reference_logprobs or ()))
        if not all(map(math.isfinite, numbers)):
            raise PalmetteError(f"sample {place} has an advantage or log-probabilities that are not finite")
    with_old = sum(sample.old_logprobs is not None for sample in samples)
    if with_old not in (0, len(samples)):
        raise PalmetteError(f"{with_old} of {len(samples)} samples have old_logprobs: give them to all or to none")
    lacking = sum(sample.reference_logprobs is None for sample in samples)
    if with_reference and lacking:
        raise PalmetteError(
            f"{lacking} of {len(samples)} samples lack reference_logprobs: set kl_weight to 0 or add them"
        )


def _is_token(token: object, vocabulary: int) -> bool:
    return isinstance(token, int) and 0 <= token < vocabulary
