"""DAPO: GRPO with a wider upper clip, groups without signal drawn anew, and a penalty for long answers.

Yu et al. 2025, with token mean. The penalty scales with the response limit: the paper's 4,096 of 20,480 tokens are its
last fifth.
"""

from pydantic import Field

from palmette.train.algorithms.grpo import Grpo, GrpoSettings


class DapoSettings(GrpoSettings):
    """Settings of DAPO."""

    clip_high: float = Field(0.28, ge=0, le=1000, description="the ratio is clipped above 1 + this; paper: 0.28")
    dynamic_sampling: bool = Field(True, description="draw new prompts for groups whose rewards are equal; paper: true")
    most_draws: int = Field(10, ge=1, le=10_000, description="how often, all prompts included; verl's recipe: 10")
    overlong_share: float = Field(
        0.2, ge=0, le=1, description="last part of the response limit, in which length costs up to 1; 0: none; paper: "
        "4,096 of 20,480 tokens",
    )  # fmt: skip


class Dapo(Grpo):
    """GRPO with a wider upper clip, groups without signal drawn anew, and a penalty for long answers."""

    Settings = DapoSettings
    settings: DapoSettings

    @property
    def draws(self) -> int:
        """Several with `dynamic_sampling`, else 1."""
        return self.settings.most_draws if self.settings.dynamic_sampling else 1

    def shaped_reward(self, reward: float, tokens: int, limit_tokens: int) -> float:
        """Return the reward with the penalty for its length."""
        return reward + overlong_penalty(tokens, limit_tokens, round(self.settings.overlong_share * limit_tokens))


def overlong_penalty(tokens: int, limit: int, cache: int) -> float:
    """Return 0 up to `limit` - `cache` tokens, then linearly less down to -1 at `limit` tokens and beyond."""
    over = tokens - (limit - cache)
    return -min(1.0, over / cache) if over > 0 and cache > 0 else 0.0


plugin = Dapo
