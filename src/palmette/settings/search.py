"""The settings of a search: its task, how its tree grows, the memory that it may use."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from palmette import registry
from palmette.errors import ConfigError
from palmette.settings.options import SettingsWithOptions
from palmette.settings.values import (
    LARGEST_COUNT,
    LARGEST_SEED,
    Amount,
    Budget,
    Characters,
    Settings,
)
from palmette.strategy import Strategy, make_strategy, read_settings, settings_of

Aggregate = Literal["last", "min", "mean", "prod"]
Vote = Literal["best", "majority", "weighted"]


def _devices_with_units(devices: Any) -> Any:
    if isinstance(devices, int | float) and not isinstance(devices, bool):
        raise ValueError(f"{devices} of what? Write '{devices}GiB' or 'cpu:{devices}GiB' if GiB are meant")
    return devices


class TaskSettings(Settings):
    """Where questions come from; a null grade and null formats mean the task's own."""

    name: str = Field("ladder", min_length=1)
    questions: int = Field(50, ge=1, le=LARGEST_COUNT)
    skip: int = Field(0, ge=0, le=LARGEST_COUNT)
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    grade: int | None = Field(None, ge=1, le=9)
    split: Literal["train", "test"] = "test"
    generator: dict[str, Any] = Field(default_factory=dict)
    format: Literal["auto", "math", "gym", "ladder", "words"] = "auto"
    system: str | None = None
    prompt: str | None = Field(None, min_length=1)
    step_end: Characters | None = Field(None, min_length=1)
    stop: Characters | None = Field(None, min_length=1)
    judge: str = Field("auto", min_length=1)
    verify_seconds: float = Field(5.0, gt=0, le=3600)
    unaskable: Literal["refuse", "skip"] = "refuse"


class SearchSettings(SettingsWithOptions):
    """How the tree grows. Limits are those of the ETS release: 25 steps, 256 tokens a step, 1024 in all.

    `options` holds the strategy's own settings, which it declares; in a file they stand beside the others.
    """

    strategy: str = Field("best_of_n", min_length=1)
    width: int = Field(16, ge=1, le=65_536)
    depth: int = Field(25, ge=1, le=LARGEST_COUNT)
    step_tokens: int = Field(256, ge=1, le=LARGEST_COUNT)
    total_tokens: int = Field(1024, ge=1, le=LARGEST_COUNT)
    aggregate: Aggregate = "prod"
    vote: Vote = "weighted"
    kv_budget: Budget = None
    first_step_tokens: int = Field(32, ge=1, le=LARGEST_COUNT)
    questions_in_flight: int = Field(16, ge=1, le=LARGEST_COUNT)

    @property
    def first_tokens(self) -> int:
        """How long a first step is expected to be, within the limits of a step."""
        return min(self.first_step_tokens, self.step_tokens, self.total_tokens)

    def build_strategy(self) -> Strategy:
        """Return the strategy with its settings filled in; raise ConfigError for a name that stands for none."""
        part = registry.find("strategy", self.strategy)
        declared = settings_of(part)
        own = {key: value for key, value in self.options.items() if key in declared.model_fields}
        try:
            return make_strategy(
                part, read_settings(declared, own), width=self.width, first_step_tokens=self.first_tokens
            )
        except TypeError as error:
            raise ConfigError(f"search.strategy {self.strategy}: {error}") from error


class MemorySettings(Settings):
    """What there is, what the planner counts with, how memory is watched. `devices` null means the ones detected."""

    devices: Annotated[str | None, BeforeValidator(_devices_with_units)] = Field(None, min_length=1)
    inference_share: float = Field(0.95, gt=0, le=1)
    training_share: float = Field(0.90, gt=0, le=1)
    prompt_tokens: int = Field(256, ge=1, le=LARGEST_COUNT)
    kv_holds: Literal["path", "width"] = "path"
    any_embed_device: bool = False
    link_bandwidth: Amount = "25GB"
    network_bandwidth: Amount = "12.5GB"
    guard: bool = True
    reclaim_least: Amount = "1GiB"
    sample_seconds: float = Field(0.1, ge=0.001, le=3600)
