"""CISPO: every token keeps its gradient; only its weight, the ratio, is cut at a cap.

MiniMax 2025, with TRL's cap on the ratio itself. (verl writes the cap as 1 + epsilon.)
"""

from typing import TYPE_CHECKING

from pydantic import Field

from palmette.train.algorithms.algorithm import Algorithm, AlgorithmSettings, Groups
from palmette.train.algorithms.statistics import standardized

if TYPE_CHECKING:
    from palmette.train.update.loss import PolicyLosses
    from palmette.train.update.token_batch import TokenBatch


class CispoSettings(AlgorithmSettings):
    """Settings of CISPO."""

    cap: float = Field(5.0, gt=0, le=1000, description="largest weight of a token, a ratio; TRL's paper index: 5.0")
    std_epsilon: float = Field(1e-4, gt=0, le=1, description="added to the group's standard deviation; TRL: 1e-4")


class Cispo(Algorithm):
    """GRPO's advantage; every token keeps its gradient, its ratio is a weight that is cut at a cap."""

    Settings = CispoSettings
    settings: CispoSettings

    def advantages(self, groups: Groups) -> list[list[float]]:
        """Return (r - mean) / (std + epsilon) within each group, as GRPO does."""
        return [standardized([outcome.total for outcome in group], self.settings.std_epsilon) for group in groups]

    def token_losses(self, tokens: "TokenBatch") -> "PolicyLosses":
        """Return -min(ratio, cap) x A x logprob, where only logprob carries a gradient."""
        from palmette.train.update.loss import PolicyLosses, ratios

        raw_T = ratios(tokens).detach()
        loss_T = -raw_T.clamp(max=self.settings.cap) * tokens.advantages_T * tokens.logprobs_T
        return PolicyLosses(loss_T, raw_T, (raw_T > self.settings.cap) & (tokens.advantages_T != 0))


plugin = Cispo
