"""PPO: each token's advantage by a critic (GAE), whitened over the update; the critic learns beside the policy.

Schulman et al. 2017, with verl's defaults and its clipped value loss.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from palmette.errors import PalmetteError
from palmette.train.algorithms.algorithm import ClipSettings, Groups, TokenAdvantages, TokenAlgorithm
from palmette.train.algorithms.gae import advantage_estimates
from palmette.train.algorithms.statistics import whitened_tokens
from palmette.train.divergence import Estimator

if TYPE_CHECKING:
    from palmette.train.update.loss import LossSettings


class PpoSettings(ClipSettings):
    """Settings of PPO."""

    discount: float = Field(1.0, ge=0, le=1, description="weight of a reward one token later; verl: 1")
    gae_decay: float = Field(1.0, ge=0, le=1, description="weight of a surprise one token later (lambda); verl: 1")
    value_weight: float = Field(1.0, ge=0, le=1000, description="weight of the value loss on a shared body; oat: 1.0")
    value_clip: float | None = Field(0.5, gt=0, le=1000, description="most a value may move in an update; verl: 0.5")
    kl: Estimator = Field("k1", description="its estimator: k1, k2 or k3; verl, in the reward: k1")
    kl_in: Literal["loss", "reward"] = Field("reward", description="where it counts: loss or reward")


class Ppo(TokenAlgorithm):
    """Each token's advantage by a critic (GAE), whitened over the update; the critic learns beside the policy."""

    Settings = PpoSettings
    settings: PpoSettings
    least_group = 1
    critic = True

    def token_advantages(self, groups: Groups) -> list[list[TokenAdvantages]]:
        """Return the whitened advantage and the return of each token. Raises PalmetteError without values."""
        discount, decay = self.settings.discount, self.settings.gae_decay
        estimates = []
        for outcome in (outcome for group in groups for outcome in group):
            if len(outcome.values) != outcome.tokens:
                raise PalmetteError("ppo needs a critic's value for each token: the outcomes have none")
            estimates.append(
                advantage_estimates(outcome.token_rewards(), outcome.values, discount=discount, decay=decay)
            )
        whitened = iter(whitened_tokens([advantages for advantages, _ in estimates]))
        returns = iter(returns for _, returns in estimates)
        return [[TokenAdvantages(next(whitened), tuple(next(returns))) for _ in group] for group in groups]

    def loss(self) -> "LossSettings":
        """Return the shared terms with the value loss."""
        from dataclasses import replace

        settings = self.settings
        return replace(super().loss(), value_weight=settings.value_weight, value_clip=settings.value_clip)


plugin = Ppo
