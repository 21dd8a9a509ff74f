"""What an update learns from: sampled responses, packed into micro-batches under a cap on tokens."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from palmette.errors import BudgetError, PalmetteError


@dataclass(frozen=True)
class Sample:
    """One response to a prompt, with its advantage; log-probabilities are one for each response token.

    `old_logprobs` are those of the policy that wrote the response (absent: the policy as it is now), and
    `reference_logprobs` those of the model that it should stay close to. Samples of one `group` share their prompt.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    advantage: float
    group: Hashable = None
    old_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prompt or not self.response:
            raise PalmetteError("cannot learn from a sample without prompt or response: leave it out")
        for name in ("old_logprobs", "reference_logprobs"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.response):
                raise PalmetteError(f"{name} has {len(given)} numbers for {len(self.response)} response tokens")

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


def check_update(samples: Sequence[Sample], *, with_reference: bool, vocabulary: int) -> None:
    """Raise PalmetteError unless the samples can make one update together."""
    if not samples:
        raise PalmetteError("an update needs one sample or more")
    for place, sample in enumerate(samples):
        strange = next(
            (token for token in (*sample.prompt, *sample.response) if not _is_token(token, vocabulary)), None
        )
        if strange is not None:
            raise PalmetteError(f"sample {place} holds the token {strange!r}, the model knows 0 to {vocabulary - 1}")
        numbers = (sample.advantage, *(sample.old_logprobs or ()), *(sample.reference_logprobs or ()))
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
