"""Dr. GRPO: the reward minus its group's mean, with losses divided by a constant length.

Liu et al. 2025 (sail-sg/understand-r1-zero): neither the spread of a group nor the length of a response weighs it.
"""

from pydantic import Field

from palmette.train.algorithms.aggregation import Aggregation
from palmette.train.algorithms.algorithm import Algorithm, ClipSettings, Groups
from palmette.train.algorithms.statistics import centered


class DrGrpoSettings(ClipSettings):
    """Settings of Dr. GRPO; its clip range is 0.2 in the code that the paper publishes (oat)."""

    aggregation: Aggregation = Field("constant", description="Dr. GRPO: constant, the response limit")


class DrGrpo(Algorithm):
    """The reward minus its group's mean, with losses divided by a constant length."""

    Settings = DrGrpoSettings
    settings: DrGrpoSettings

    def advantages(self, groups: Groups) -> list[list[float]]:
        """Return r - mean within each group."""
        return [centered([outcome.total for outcome in group]) for group in groups]


plugin = DrGrpo
