"""The algorithm contract: advantages from rewards, the policy term of the loss, how losses of tokens are averaged.

Importing an algorithm imports no torch: config and plan read its settings. Only `token_losses` and `loss` need it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from palmette.errors import ConfigError, PalmetteError
from palmette.own_parts import name_of, telling
from palmette.train.algorithms.aggregation import Aggregation
from palmette.train.divergence import Estimator

if TYPE_CHECKING:
    from palmette.train.update.loss import LossSettings, PolicyLosses
    from palmette.train.update.token_batch import TokenBatch


@dataclass(frozen=True)
class Outcome:
    """One judged response: its reward and its number of tokens.

    `penalties` is what each token loses of the reward, such as a weighted KL divergence; empty for nothing. `values`
    is a critic's estimate before each token, empty without a critic. Raises PalmetteError for another number of them.
    """

    reward: float
    tokens: int
    penalties: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("penalties", "values"):
            given = getattr(self, name)
            if given and len(given) != self.tokens:
                raise PalmetteError(f"an outcome of {self.tokens} tokens has {len(given)} {name}")

    @property
    def total(self) -> float:
        """The reward less all penalties."""
        return self.reward - sum(self.penalties)

    def token_rewards(self) -> list[float]:
        """Return the reward of each token: that of the response at the last one, less the penalty of each."""
        rewards = [-penalty for penalty in self.penalties] or [0.0] * self.tokens
        rewards[-1] += self.reward
        return rewards


@dataclass(frozen=True)
class TokenAdvantages:
    """The advantage of each token of a response, and what a critic should estimate there (None without a critic)."""

    advantages: tuple[float, ...]
    returns: tuple[float, ...] | None = None


Groups = Sequence[Sequence[Outcome]]
"""All responses of an update: a group holds the responses to one prompt."""


class AlgorithmSettings(BaseModel):
    """Base class for the settings of an algorithm: a field is a config key `train.NAME`, its source in `description`.

    All algorithms have these; each states the defaults that its source publishes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    aggregation: Aggregation = Field(
        "token", description="token: mean over all tokens; sequence: mean of each response's mean; constant: sum over "
        "responses x response limit. TRL and verl: token",
    )  # fmt: skip
    kl_weight: float = Field(0.0, ge=0, le=1000, description="weight of the KL divergence from the reference; TRL: 0")
    kl: Estimator = Field("k3", description="its estimator: k1, k2 or k3 (Schulman 2020); TRL: k3")
    kl_in: Literal["loss", "reward"] = Field("loss", description="where it counts: loss or reward; TRL: loss")
    entropy_weight: float = Field(0.0, ge=0, le=1000, description="weight of the entropy bonus; TRL, verl: 0")


class ClipSettings(AlgorithmSettings):
    """Settings of algorithms with PPO's clip."""

    clip_low: float = Field(0.2, ge=0, le=1, description="the ratio is clipped below 1 - this; TRL, verl: 0.2")
    clip_high: float = Field(0.2, ge=0, le=1000, description="the ratio is clipped above 1 + this; TRL, verl: 0.2")
    dual_clip: float | None = Field(
        None, gt=1, le=1000, description="most by which a negative advantage is multiplied; null: no limit, as TRL; "
        "verl: 3.0",
    )  # fmt: skip


class Algorithm(ABC):
    """A training algorithm. A subclass declares its settings in `Settings`; the first line of its docstring is listed.

    All methods are pure. `advantages` gives each response one number; an algorithm whose tokens have advantages of
    their own is a `TokenAlgorithm`.
    """

    Settings: ClassVar[type[AlgorithmSettings]] = ClipSettings
    least_group: ClassVar[int] = 2
    """The fewest responses to a prompt that give any signal."""
    critic: ClassVar[bool] = False
    """Whether outcomes need `values`."""
    settings: Any

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings

    @property
    def aggregation(self) -> Aggregation:
        """How the losses of tokens are averaged; `sample_weights` makes weights of it."""
        return self.settings.aggregation  # type: ignore[no-any-return]

    @property
    def draws(self) -> int:
        """How often new prompts may be drawn until there are enough groups with signal; 1: all groups are taken."""
        return 1

    def shaped_reward(self, reward: float, tokens: int, limit_tokens: int) -> float:
        """Return the reward of a response of so many tokens, of at most `limit_tokens`; unchanged by default."""
        return reward

    @abstractmethod
    def advantages(self, groups: Groups) -> list[list[float]]:
        """Return one advantage for each response of each group; 0 for all responses of a group without signal."""

    def token_advantages(self, groups: Groups) -> list[list[TokenAdvantages]]:
        """Return one advantage for each token of each response: that of the response."""
        return [
            [TokenAdvantages((number,) * outcome.tokens) for number, outcome in zip(numbers, group, strict=True)]
            for numbers, group in zip(self.advantages(groups), groups, strict=True)
        ]

    def token_losses(self, tokens: "TokenBatch") -> "PolicyLosses":
        """Return the policy term of each token's loss, without KL divergence and entropy: PPO's clipped loss."""
        from palmette.train.update.loss import clipped_losses

        return clipped_losses(tokens, self.settings.clip_low, self.settings.clip_high, self.settings.dual_clip)

    def loss(self) -> "LossSettings":
        """Return the settings of the terms of the loss that all algorithms share."""
        from palmette.train.update.loss import LossSettings

        settings = self.settings
        in_loss = settings.kl_weight if settings.kl_in == "loss" else 0.0
        return LossSettings(kl_weight=in_loss, kl=settings.kl, entropy_weight=settings.entropy_weight)


class TokenAlgorithm(Algorithm):
    """An algorithm that gives each token an advantage of its own, from rewards and penalties of tokens."""

    @abstractmethod
    def token_advantages(self, groups: Groups) -> list[list[TokenAdvantages]]:
        """Return the advantage of each token of each response."""

    def advantages(self, groups: Groups) -> list[list[float]]:
        """Raise ConfigError: there is no one number for a response."""
        raise ConfigError(
            f"{type(self).__name__} gives each token an advantage of its own, where one for a whole response is "
            "needed: choose another algorithm, such as grpo"
        )


def make_algorithm(part: Any, values: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm with settings read from values as Python, YAML or a run's events hold them.

    `part` is a subclass of Algorithm, or an object of one, which takes no values. Raises ConfigError for anything else
    and for a class that cannot be built, pydantic's ValidationError for values that are not as declared.
    """
    if isinstance(part, Algorithm) and not values:
        return part
    if not (isinstance(part, type) and issubclass(part, Algorithm)):
        raise ConfigError(f"algorithm {name_of(part)} is no subclass of palmette.train.algorithms.algorithm.Algorithm")
    settings = part.Settings.model_validate_json(to_json(values))
    with telling("algorithm", name_of(part), "its constructor", ConfigError):
        return part(settings)
