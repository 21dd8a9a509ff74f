"""Statistics of rewards: centered and standardized within a group, whitened over all tokens of an update."""

import math
from collections.abc import Sequence


def centered(rewards: Sequence[float]) -> list[float]:
    """Return r - mean; exactly 0 for each where all are equal."""
    if _all_equal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardized(rewards: Sequence[float], epsilon: float) -> list[float]:
    """Return (r - mean) / (std + epsilon), std with n - 1 as in TRL and verl; 0 for each where all are equal."""
    differences = centered(rewards)
    if _all_equal(rewards):
        return differences
    deviation = math.sqrt(math.fsum(difference**2 for difference in differences) / (len(rewards) - 1))
    return [difference / (deviation + epsilon) for difference in differences]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Return r - mean of the others; 0 for a group of one."""
    count = len(rewards)
    return [difference * count / (count - 1) for difference in centered(rewards)] if count > 1 else [0.0]


WHITEN_EPSILON = 1e-8
"""Added to the variance, as verl does."""


def whitened(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return (v - mean) / sqrt(variance + 1e-8) where each value stands for `counts` tokens; 0 where all are equal.

    The variance is over tokens, with n - 1 as in verl.
    """
    if _all_equal(values):
        return [0.0] * len(values)
    total = sum(counts)
    mean = math.fsum(value * count for value, count in zip(values, counts, strict=True)) / total
    squares = math.fsum((value - mean) ** 2 * count for value, count in zip(values, counts, strict=True))
    scale = math.sqrt(squares / (total - 1) + WHITEN_EPSILON)
    return [(value - mean) / scale for value in values]


def whitened_tokens(responses: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the numbers of all tokens of all responses, whitened together."""
    flat = whitened([value for response in responses for value in response], [1] * sum(map(len, responses)))
    rest = iter(flat)
    return [tuple(next(rest) for _ in response) for response in responses]


def groups_with_signal(rewards: Sequence[Sequence[float]]) -> list[int]:
    """Return the places of the groups whose rewards differ: DAPO's dynamic sampling keeps these alone.

    DAPO looks at correctness, so give rewards before `shaped_reward`.
    """
    return [place for place, group in enumerate(rewards) if not _all_equal(group)]


def _all_equal(values: Sequence[float]) -> bool:
    return all(value == values[0] for value in values)
