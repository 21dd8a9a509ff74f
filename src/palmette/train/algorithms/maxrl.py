"""MaxRL: the reward minus its group's mean, divided by that mean, so that rare successes weigh most.

Tajwar et al. 2026 (2602.02710). Rewards have to be 0 or more: a negative mean would turn the sign around.
"""

from palmette.errors import PalmetteError
from palmette.train.algorithms.algorithm import Algorithm, ClipSettings, Groups
from palmette.train.algorithms.statistics import centered


class Maxrl(Algorithm):
    """The reward minus its group's mean, divided by that mean, so that rare successes weigh most."""

    Settings = ClipSettings
    settings: ClipSettings

    def advantages(self, groups: Groups) -> list[list[float]]:
        """Return (r - mean) / mean within each group. Raises PalmetteError for a negative reward."""
        return [_over_mean([outcome.total for outcome in group]) for group in groups]


def _over_mean(rewards: list[float]) -> list[float]:
    if min(rewards) < 0:
        raise PalmetteError(
            f"maxrl divides by the mean reward, so rewards have to be 0 or more: one is {min(rewards)}. Shift them, or "
            "choose grpo"
        )
    mean = sum(rewards) / len(rewards)
    return [difference / mean for difference in centered(rewards)] if mean > 0 else [0.0] * len(rewards)


plugin = Maxrl
