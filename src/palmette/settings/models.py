"""The settings of models: policy, reward model and embedder, and which servers they can be on."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from palmette import registry
from palmette.settings.values import (
    DEVICE,
    LARGEST_COUNT,
    Addresses,
    Budget,
    Device,
    Dtype,
    Quantize,
    Settings,
    off_in_yaml,
)

PARTNERS = {"seedling": "seedling-ripe", "seedling-words": "seedling-words-prm", "sapling": "sapling-prm"}
FORMATS = {"seedling": "ladder", "seedling-words": "words", "sapling": "words"}
"""How questions of one's own are put to policies that were trained on one form of them; to others as mathematics."""

LIKELIHOODS = ("likelihood", "likelihood_gain")
"""Ways to score that read the probabilities of tokens: any causal language model can be the reward model."""

READ_BY_LIKELIHOOD = ("seedling-ripe",)
"""Models of the zoo that score by what they expect."""

SERVERS = ("openai", "sglang", "vllm")
"""Backends whose policy is on servers: `policy.address` says where."""

REWARD_SERVERS = ("sglang", "vllm")
"""Where a reward model can be that is not in this process: `reward.address` says at which addresses."""


def _greedy_or_warm(temperature: float) -> float:
    if 0 < temperature < 0.01:
        raise ValueError("give 0 for the likeliest token, or at least 0.01: logits over less overflow")
    return temperature


class PolicySettings(Settings):
    """The model that proposes steps. Sampling defaults are the ones ETS and REBASE publish: temperature 1, no cut."""

    model: str = Field("seedling", min_length=1)
    backend: str = Field("local", min_length=1)
    adapter: str | None = Field(None, min_length=1)
    dtype: Dtype = "float32"
    quantize: Quantize = "none"
    device: Device = Field("auto", pattern=DEVICE)
    temperature: Annotated[float, AfterValidator(_greedy_or_warm)] = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=LARGEST_COUNT)
    min_p: float = Field(0.0, ge=0, le=1)
    batch_rows: int = Field(512, ge=1, le=65_536)
    drafts: Annotated[Literal["auto", "off"], BeforeValidator(off_in_yaml)] = "auto"
    address: Addresses = ()
    served_model: str | None = Field(None, min_length=1)
    answer_seconds: float = Field(600.0, gt=0, le=86_400)
    return_seconds: float = Field(0.0, ge=0, le=86_400)

    @property
    def is_served(self) -> bool:
        """Whether the policy is on servers, not in this process."""
        return self.backend in SERVERS


class RewardSettings(Settings):
    """The model that scores steps; null for none, `auto` for the one trained for the policy.

    `score` tells how: by a scalar head, by how much a causal language model expects the step, as a published model is
    read by its `profile`, by how much more it expects the step than `small_model` does, or by another scorer. With a
    `backend` other than local the model is on the servers at `address`, the small one on those at `small_address`.
    """

    model: str | None = Field("auto", min_length=1)
    backend: Literal["local", "sglang", "vllm"] = "local"
    score: str = Field("auto", min_length=1)
    profile: str | None = Field(None, min_length=1)
    small_model: str | None = Field(None, min_length=1)
    adapter: str | None = Field(None, min_length=1)
    dtype: Dtype = "float32"
    quantize: Quantize = "none"
    device: Device = Field("auto", pattern=DEVICE)
    batch_rows: int = Field(512, ge=1, le=65_536)
    kv_budget: Budget = None
    address: Addresses = ()
    served_model: str | None = Field(None, min_length=1)
    small_address: Addresses = ()
    small_served_model: str | None = Field(None, min_length=1)
    answer_seconds: float = Field(600.0, gt=0, le=86_400)
    return_seconds: float = Field(0.0, ge=0, le=86_400)

    @property
    def is_served(self) -> bool:
        """Whether the reward model is on servers, not in this process."""
        return self.backend in REWARD_SERVERS


class EmbedderSettings(Settings):
    """The SentenceTransformer that tells which steps say the same; loaded only where a strategy uses clusters.

    Device `auto` is the reward model's.
    """

    model: str = Field("minilm", min_length=1)
    device: Device = Field("auto", pattern=DEVICE)
    batch_rows: int = Field(128, ge=1, le=65_536)
    cut: float = Field(0.05, ge=0, le=2)


def reads_model(score: str) -> bool:
    """Tell whether a way to score reads the reward model; any other name stands for a scorer of its own."""
    return score == "auto" or score in registry.built_ins("scorer")
