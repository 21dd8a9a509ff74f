"""REINFORCE++: the return from each token on, whitened over all tokens of the update; PPO's clip, no critic.

Hu et al. 2025. The KL divergence is part of each token's reward. With `group_baseline` it is REINFORCE++-baseline: the
mean of the group is taken from each reward first, and every token has the advantage of its response.
"""

from typing import Literal

from pydantic import Field

from palmette.train.algorithms.algorithm import ClipSettings, Groups, TokenAdvantages, TokenAlgorithm
from palmette.train.algorithms.gae import discounted_returns
from palmette.train.algorithms.statistics import centered, whitened_tokens
from palmette.train.divergence import Estimator


class ReinforcePlusPlusSettings(ClipSettings):
    """Settings of REINFORCE++."""

    discount: float = Field(1.0, ge=0, le=1, description="weight of a reward one token later; verl, OpenRLHF: 1")
    group_baseline: bool = Field(False, description="take the group's mean from each reward first; paper's variant")
    kl_weight: float = Field(0.01, ge=0, le=1000, description="weight of the KL divergence; OpenRLHF: 0.01")
    kl: Estimator = Field("k1", description="its estimator: k1, k2 or k3; OpenRLHF: k1")
    kl_in: Literal["loss", "reward"] = Field("reward", description="where it counts: loss or reward; paper: reward")


class ReinforcePlusPlus(TokenAlgorithm):
    """The return from each token on, whitened over all tokens of the update; PPO's clip, no critic."""

    Settings = ReinforcePlusPlusSettings
    settings: ReinforcePlusPlusSettings
    least_group = 1  # The whole update is the group.

    def token_advantages(self, groups: Groups) -> list[list[TokenAdvantages]]:
        """Return the whitened return of each token, or with `group_baseline` the whitened reward of its response."""
        if self.settings.group_baseline:
            returns = [
                [number] * outcome.tokens
                for group in groups
                for number, outcome in zip(centered([outcome.total for outcome in group]), group, strict=True)
            ]
        else:
            discount = self.settings.discount
            returns = [discounted_returns(outcome.token_rewards(), discount) for group in groups for outcome in group]
        rest = iter(whitened_tokens(returns))
        return [[TokenAdvantages(next(rest)) for _ in group] for group in groups]


plugin = ReinforcePlusPlus
