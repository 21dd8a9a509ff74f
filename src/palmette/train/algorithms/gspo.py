"""GSPO: the ratio is that of the whole response to the power 1 / tokens, for every token of it.

Zheng et al. 2025, written as its GSPO-token: the value is the same for all tokens of a response, the gradient goes
through each token alone, so that tokens may have advantages of their own. verl does the same.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from palmette.train.algorithms.aggregation import Aggregation
from palmette.train.algorithms.grpo import Grpo, GrpoSettings

if TYPE_CHECKING:
    from palmette.train.update.loss import PolicyLosses
    from palmette.train.update.token_batch import TokenBatch


class GspoSettings(GrpoSettings):
    """Settings of GSPO."""

    aggregation: Aggregation = Field("sequence", description="paper: sequence")
    clip_low: float = Field(3e-4, ge=0, le=1, description="the ratio is clipped below 1 - this; paper: 3e-4")
    clip_high: float = Field(4e-4, ge=0, le=1000, description="the ratio is clipped above 1 + this; paper: 4e-4")


class Gspo(Grpo):
    """GRPO's advantage; the ratio is that of the whole response to the power 1 / tokens, for every token of it."""

    Settings = GspoSettings
    settings: GspoSettings

    def token_losses(self, tokens: "TokenBatch") -> "PolicyLosses":
        """Return PPO's clipped loss with the response's ratio, s = exp(mean of logprob - old)."""
        from palmette.train.update.loss import bounded_losses, ratios
        from palmette.train.update.sequence_ratio import sequence_logratios

        settings, logprobs_T = self.settings, tokens.logprobs_T
        means_T = sequence_logratios(tokens, mean=True).detach()
        weights_T = (means_T + logprobs_T - logprobs_T.detach()).exp()
        raw_T = ratios(tokens).detach()
        advantages_T = tokens.advantages_T
        return bounded_losses(weights_T, raw_T, advantages_T, settings.clip_low, settings.clip_high, settings.dual_clip)


plugin = Gspo
