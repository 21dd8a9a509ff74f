"""Returns and generalized advantage estimates of one response's tokens, from their rewards and a critic's values."""

from collections.abc import Sequence


def discounted_returns(rewards: Sequence[float], discount: float) -> list[float]:
    """Return the discounted sum of the rewards from each token on."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + discount * following
        returns.append(following)
    return returns[::-1]


def advantage_estimates(
    rewards: Sequence[float], values: Sequence[float], *, discount: float, decay: float
) -> tuple[list[float], list[float]]:
    """Return the advantage of each token (Schulman et al. 2016) and the return that its value should have been.

    `values` are the critic's estimates before each token; after the last one the value is 0. The advantage is the sum
    of the surprises reward + discount x next value - value from this token on, weighted by (discount x decay)^k. The
    return is advantage + value.
    """
    nexts = [*values[1:], 0.0]
    surprises = [reward + discount * after - value for reward, value, after in zip(rewards, values, nexts, strict=True)]
    advantages = discounted_returns(surprises, discount * decay)
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]
