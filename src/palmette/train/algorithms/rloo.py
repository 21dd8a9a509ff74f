"""RLOO: the reward minus the mean of the group's other rewards; a response is one action.

Ahmadian et al. 2024, as TRL has it: the ratio is that of the whole response, clipped, and the KL divergence is part of
the reward.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from palmette.train.algorithms.aggregation import Aggregation
from palmette.train.algorithms.algorithm import Algorithm, ClipSettings, Groups
from palmette.train.algorithms.statistics import leave_one_out
from palmette.train.divergence import Estimator

if TYPE_CHECKING:
    from palmette.train.update.loss import PolicyLosses
    from palmette.train.update.token_batch import TokenBatch


class RlooSettings(ClipSettings):
    """Settings of RLOO."""

    aggregation: Aggregation = Field("sequence", description="TRL: sequence, the mean over responses")
    kl_weight: float = Field(0.05, ge=0, le=1000, description="weight of the KL divergence; TRL: 0.05, paper: 0.03")
    kl: Estimator = Field("k1", description="its estimator: k1, k2 or k3; TRL: k1")
    kl_in: Literal["loss", "reward"] = Field("reward", description="where it counts: loss or reward; TRL: reward")


class Rloo(Algorithm):
    """The reward minus the mean of the group's other rewards; a response is one action."""

    Settings = RlooSettings
    settings: RlooSettings

    def advantages(self, groups: Groups) -> list[list[float]]:
        """Return r - mean of the other rewards of the group."""
        return [leave_one_out([outcome.total for outcome in group]) for group in groups]

    def token_losses(self, tokens: "TokenBatch") -> "PolicyLosses":
        """Return the clipped loss of the response's ratio, the product of its tokens' ratios, for each of its tokens.

        The mean over a response's tokens is then the loss of the response, as in TRL.
        """
        from palmette.train.update.loss import bounded_losses, ratios
        from palmette.train.update.sequence_ratio import sequence_logratios

        settings = self.settings
        weights_T = sequence_logratios(tokens, mean=False).exp()
        raw_T = ratios(tokens).detach()
        advantages_T = tokens.advantages_T
        return bounded_losses(weights_T, raw_T, advantages_T, settings.clip_low, settings.clip_high, settings.dual_clip)


plugin = Rloo
