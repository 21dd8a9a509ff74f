"""GRPO: the advantage is the reward's z-score within its group.

Shao et al. 2024, with the defaults of TRL: no KL divergence, token mean over the whole update.
"""

from pydantic import Field

from palmette.train.algorithms.algorithm import Algorithm, ClipSettings, Groups
from palmette.train.algorithms.statistics import standardized


class GrpoSettings(ClipSettings):
    """Settings of GRPO."""

    std_epsilon: float = Field(1e-4, gt=0, le=1, description="added to the group's standard deviation; TRL: 1e-4")


class Grpo(Algorithm):
    """The advantage is the reward's z-score within its group."""

    Settings = GrpoSettings
    settings: GrpoSettings

    def advantages(self, groups: Groups) -> list[list[float]]:
        """Return (r - mean) / (std + epsilon) within each group."""
        return [standardized([outcome.total for outcome in group], self.settings.std_epsilon) for group in groups]


plugin = Grpo
