"""What a run can be told: one table of settings for each part, as pydantic models with their defaults."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from palmette import registry
from palmette.errors import ConfigError
from palmette.scale_settings import ScaleSettings
from palmette.server_settings import ServerSettings
from palmette.strategy import Strategy, make_strategy, read_settings, settings_of
from palmette.units import parse_bytes

Device = str
Aggregate = Literal["last", "min", "mean", "prod"]
Vote = Literal["best", "majority", "weighted"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["none", "bfloat16", "int8"]
Board = Literal["tensorboard", "wandb"]
_DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
PARTNERS = {"seedling": "seedling-ripe"}
FORMATS = {"seedling": "ladder"}
"""How questions of one's own are put to policies that were trained on one form of them; to others as mathematics."""

LIKELIHOODS = ("likelihood", "likelihood_gain")
"""Ways to score that read the probabilities of tokens: any causal language model can be the reward model."""

READ_BY_LIKELIHOOD = ("seedling-ripe",)
"""Models of the zoo that score by what they expect."""


SERVERS = ("openai", "sglang", "vllm")
"""Backends whose policy is on servers: `policy.address` says where."""

REWARD_SERVERS = ("sglang", "vllm")
"""Where a reward model can be that is not in this process: `reward.address` says at which addresses."""

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a layer that LoRA may be put on."""

_LARGEST_SEED = 2**63 - 1
_LARGEST_COUNT = 10**7


def _off_in_yaml(value: Any) -> Any:
    """Return "off" for false, which is how YAML reads an unquoted `off`."""
    return "off" if value is False else value


def _greedy_or_warm(temperature: float) -> float:
    if 0 < temperature < 0.01:
        raise ValueError("give 0 for the likeliest token, or at least 0.01: logits over less overflow")
    return temperature


def _with_line_breaks(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")  # A shell hands on the two characters.


def _targets(text: str) -> str:
    wrong = [name for name in text.split(",") if name not in LORA_TARGETS]
    if text != "all" and wrong:
        raise ValueError(f"name 'all' or some of {','.join(LORA_TARGETS)}, with commas between")
    return text


def _amount_of_memory(text: Any) -> str | int:
    if not isinstance(text, str | int) or isinstance(text, bool):
        raise ValueError("write an amount of memory like '2GiB', or a whole number of bytes")
    try:
        if parse_bytes(text) > 0:
            return text
    except ConfigError as error:
        raise ValueError(str(error)) from None
    raise ValueError("a budget of no bytes holds nothing")


def _devices_with_units(devices: Any) -> Any:
    if isinstance(devices, int | float) and not isinstance(devices, bool):
        raise ValueError(f"{devices} of what? Write '{devices}GiB' or 'cpu:{devices}GiB' if GiB are meant")
    return devices


def _addresses(value: Any) -> Any:
    """Return addresses without the slash or the /v1 that they may end in; several in one text have commas between."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(address, str) for address in listed):
        raise ValueError("write an address like http://127.0.0.1:8000, or several with commas between")
    return tuple(_address(address.strip()) for address in listed)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError("write an address like http://127.0.0.1:8000, or several with commas between")
    if "@" in parts.netloc:
        raise ValueError("an address is recorded with the run and must not hold a password: use PALMETTE_API_KEY")
    return text.rstrip("/").removesuffix("/v1")


def _list_of_names(names: Any) -> Any:
    if isinstance(names, str):
        raise ValueError(f"write a list, like [{names.strip('[]')}]")
    return tuple(names) if isinstance(names, list) else names


Budget = Annotated[Any, AfterValidator(lambda text: None if text is None else _amount_of_memory(text))]
"""An amount of memory, or null."""


class Settings(BaseModel):
    """A table of settings: unknown keys, numbers as texts, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PolicySettings(Settings):
    """The model that proposes steps. Sampling defaults are the ones ETS and REBASE publish: temperature 1, no cut."""

    model: str = Field("seedling", min_length=1)
    backend: str = Field("local", min_length=1)
    adapter: str | None = Field(None, min_length=1)
    dtype: Dtype = "float32"
    quantize: Quantize = "none"
    device: Device = Field("auto", pattern=_DEVICE)
    temperature: Annotated[float, AfterValidator(_greedy_or_warm)] = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=_LARGEST_COUNT)
    min_p: float = Field(0.0, ge=0, le=1)
    batch_rows: int = Field(512, ge=1, le=65_536)
    drafts: Annotated[Literal["auto", "off"], BeforeValidator(_off_in_yaml)] = "auto"
    address: Annotated[tuple[str, ...], BeforeValidator(_addresses)] = ()
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
    device: Device = Field("auto", pattern=_DEVICE)
    batch_rows: int = Field(512, ge=1, le=65_536)
    kv_budget: Budget = None
    address: Annotated[tuple[str, ...], BeforeValidator(_addresses)] = ()
    served_model: str | None = Field(None, min_length=1)
    small_address: Annotated[tuple[str, ...], BeforeValidator(_addresses)] = ()
    small_served_model: str | None = Field(None, min_length=1)
    answer_seconds: float = Field(600.0, gt=0, le=86_400)
    return_seconds: float = Field(0.0, ge=0, le=86_400)

    @property
    def is_served(self) -> bool:
        """Whether the reward model is on servers, not in this process."""
        return self.backend in REWARD_SERVERS


class TaskSettings(Settings):
    """Where questions come from; a null grade and null formats mean the task's own."""

    name: str = Field("ladder", min_length=1)
    questions: int = Field(50, ge=1, le=_LARGEST_COUNT)
    skip: int = Field(0, ge=0, le=_LARGEST_COUNT)
    seed: int = Field(0, ge=0, le=_LARGEST_SEED)
    grade: int | None = Field(None, ge=1, le=9)
    split: Literal["train", "test"] = "test"
    generator: dict[str, Any] = Field(default_factory=dict)
    format: Literal["auto", "math", "gym", "ladder", "words"] = "auto"
    system: str | None = None
    prompt: str | None = Field(None, min_length=1)
    step_end: Annotated[str, AfterValidator(_with_line_breaks)] | None = Field(None, min_length=1)
    stop: Annotated[str, AfterValidator(_with_line_breaks)] | None = Field(None, min_length=1)
    judge: str = Field("auto", min_length=1)
    verify_seconds: float = Field(5.0, gt=0, le=3600)
    unaskable: Literal["refuse", "skip"] = "refuse"


def split_options(table: type[Settings], values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what belongs to the part that a table names, its strategy or its algorithm, and what to the table itself.

    A table that was read before has what belongs to its part under `options`.
    """
    shared = [key for key in table.model_fields if key != "options" and key in values]
    return {str(key): values[key] for key in values if key not in shared}, {key: values[key] for key in shared}


class SearchSettings(Settings):
    """How the tree grows. Limits are those of the ETS release: 25 steps, 256 tokens a step, 1024 in all.

    `options` holds the strategy's own settings, which it declares; in a file they stand beside the others.
    """

    strategy: str = Field("best_of_n", min_length=1)
    width: int = Field(16, ge=1, le=65_536)
    depth: int = Field(25, ge=1, le=_LARGEST_COUNT)
    step_tokens: int = Field(256, ge=1, le=_LARGEST_COUNT)
    total_tokens: int = Field(1024, ge=1, le=_LARGEST_COUNT)
    aggregate: Aggregate = "prod"
    vote: Vote = "weighted"
    kv_budget: Budget = None
    first_step_tokens: int = Field(32, ge=1, le=_LARGEST_COUNT)
    questions_in_flight: int = Field(16, ge=1, le=_LARGEST_COUNT)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        own, shared = split_options(cls, values)
        return {**shared, "options": own}

    @model_serializer(mode="wrap")
    def _with_options(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        options = values.pop("options", {})
        return {**values, **options}

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


class EmbedderSettings(Settings):
    """The SentenceTransformer that tells which steps say the same; loaded only where a strategy uses clusters.

    Device `auto` is the reward model's.
    """

    model: str = Field("minilm", min_length=1)
    device: Device = Field("auto", pattern=_DEVICE)
    batch_rows: int = Field(128, ge=1, le=65_536)
    cut: float = Field(0.05, ge=0, le=2)


class MemorySettings(Settings):
    """What there is, what the planner counts with, how memory is watched. `devices` null means the ones detected."""

    devices: Annotated[str | None, BeforeValidator(_devices_with_units)] = Field(None, min_length=1)
    inference_share: float = Field(0.95, gt=0, le=1)
    training_share: float = Field(0.90, gt=0, le=1)
    prompt_tokens: int = Field(256, ge=1, le=_LARGEST_COUNT)
    kv_holds: Literal["path", "width"] = "path"
    any_embed_device: bool = False
    link_bandwidth: Annotated[Any, AfterValidator(_amount_of_memory)] = "25GB"
    network_bandwidth: Annotated[Any, AfterValidator(_amount_of_memory)] = "12.5GB"
    guard: bool = True
    reclaim_least: Annotated[Any, AfterValidator(_amount_of_memory)] = "1GiB"
    sample_seconds: float = Field(0.1, ge=0.001, le=3600)


class TrainSettings(Settings):
    """How a policy is trained. Rollouts are searches.

    `search.width` is the number of responses to a question, `search.total_tokens` their longest. `options` holds the
    algorithm's own settings, which it declares; in a file they stand beside the others. `critic` is `head`, a value
    head on the policy's own body, or the name of a model. Where servers generate, `server_ratio` tells what is done
    about tokens that the learner finds more than `server_ratio_cut` times as likely as the server did.
    """

    algorithm: str = Field("grpo", min_length=1)
    credit: str = Field("auto", min_length=1)
    updates: int = Field(100, ge=1, le=_LARGEST_COUNT)
    questions: int = Field(16, ge=1, le=_LARGEST_COUNT)
    prompt_tokens: int | None = Field(None, ge=1, le=_LARGEST_COUNT)
    mini_batches: int = Field(1, ge=1, le=65_536)
    epochs: int = Field(1, ge=1, le=65_536)
    mask_cut: bool = False
    method: Literal["full", "lora"] = "full"
    lora_rank: int = Field(16, ge=1, le=65_536)
    lora_targets: Annotated[str, AfterValidator(_targets)] = "all"
    learning_rate: float = Field(1e-6, gt=0, le=1)
    critic: str = Field("head", min_length=1)
    critic_learning_rate: float = Field(1e-5, gt=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: int = Field(0, ge=0, le=_LARGEST_COUNT)
    weight_decay: float = Field(0.0, ge=0, le=1)
    max_norm: float | None = Field(1.0, gt=0)
    optimizer_dtype: Literal["float32", "bfloat16"] = "float32"
    host_optimizer: bool = False
    micro_batch_tokens: int = Field(4096, ge=1, le=_LARGEST_COUNT)
    gradient_checkpointing: bool = True
    sharing: Annotated[Literal["auto", "off", "packed", "depth_first"], BeforeValidator(_off_in_yaml)] = "auto"
    server_ratio: Annotated[Literal["truncate", "mask", "off"], BeforeValidator(_off_in_yaml)] = "truncate"
    server_ratio_cut: float = Field(2.0, ge=1, le=1000)
    reference: Literal["auto", "none", "host"] = "auto"
    rewards: dict[str, float] = Field(default_factory=lambda: {"judge": 1.0}, min_length=1)
    reward_seconds: float = Field(60.0, gt=0, le=86_400)
    on_reward_error: Literal["stop", "skip"] = "stop"
    eval_every: int = Field(0, ge=0, le=_LARGEST_COUNT)
    eval_questions: int = Field(50, ge=1, le=_LARGEST_COUNT)
    eval_task: str | None = Field(None, min_length=1)
    eval_strategy: str = Field("best_of_n", min_length=1)
    eval_width: int = Field(1, ge=1, le=65_536)
    checkpoint_every: int = Field(10, ge=1, le=_LARGEST_COUNT)
    keep_checkpoints: int = Field(2, ge=1, le=_LARGEST_COUNT)
    stop_without_signal: int = Field(10, ge=1, le=_LARGEST_COUNT)
    log_to: Annotated[tuple[Board, ...], BeforeValidator(_list_of_names)] = ()
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        own, shared = split_options(cls, values)
        return {**shared, "options": own}

    @model_serializer(mode="wrap")
    def _with_options(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        options = values.pop("options", {})
        return {**values, **options}

    @property
    def uses_reference(self) -> bool:
        """Whether the KL divergence from a reference policy is part of the loss or of the reward."""
        return bool(self.options.get("kl_weight", 0.0))

    @property
    def critic_model(self) -> str | None:
        """The critic where it is a model of its own."""
        return None if self.critic == "head" else self.critic


class DataSettings(Settings):
    """Rows that a model is trained on: where they are, how often they are learned from, how many at a time.

    `batch_tokens` is how large an update is at most, but for its last row. `most_tokens` null is the model's context.
    """

    data: str | None = Field(None, min_length=1)
    epochs: int = Field(1, ge=1, le=65_536)
    batch_tokens: int = Field(16_384, ge=1, le=_LARGEST_COUNT)
    most_tokens: int | None = Field(None, ge=1, le=_LARGEST_COUNT)
    too_long: Literal["refuse", "skip"] = "refuse"
    test_share: float = Field(0.0, ge=0, le=0.5)


class SftSettings(DataSettings):
    """What `palmette sft` trains on: rows of prompt and completion, or of messages."""


class PrmSettings(DataSettings):
    """What `palmette train-prm` trains on: rows of steps with labels, or questions whose steps are labeled first.

    With `questions` the policy solves so many questions of the task, and rollouts from each step give its label: `hard`
    is 1 if any of them is correct, `soft` the share that is.
    """

    questions: int | None = Field(None, ge=1, le=_LARGEST_COUNT)
    labels: Literal["hard", "soft"] = "hard"
    separator: Annotated[str, AfterValidator(_with_line_breaks)] = Field("\n", min_length=1)


def reads_model(score: str) -> bool:
    """Tell whether a way to score reads the reward model; any other name stands for a scorer of its own."""
    return score == "auto" or score in registry.built_ins("scorer")


class Config(Settings):
    """Everything a run is told. `out` null means a new folder below `runs`."""

    seed: int = Field(0, ge=0, le=_LARGEST_SEED)
    out: str | None = Field(None, min_length=1)
    policy: PolicySettings = PolicySettings()
    reward: RewardSettings = RewardSettings()
    task: TaskSettings = TaskSettings()
    embedder: EmbedderSettings = EmbedderSettings()
    search: SearchSettings = SearchSettings()
    memory: MemorySettings = MemorySettings()
    train: TrainSettings = TrainSettings()
    sft: SftSettings = SftSettings()
    prm: PrmSettings = PrmSettings()
    servers: ServerSettings = ServerSettings()
    scale: ScaleSettings = ScaleSettings()
    _given: tuple[object, ...] = PrivateAttr(())

    @property
    def given(self) -> tuple[object, ...]:
        """The objects that this config names, which can be found for as long as it lives."""
        return self._given

    def hold(self, *given: object) -> None:
        """Keep objects that this config names."""
        self._given = (*self._given, *given)

    def has_scores(self) -> bool:
        """Tell whether steps are scored: by a reward model, or by a scorer of the user's own."""
        return self.partner() is not None or not reads_model(self.reward.score)

    def partner(self) -> str | None:
        """Return the reward model: the one named, or for `auto` the one that was trained for the policy, if any."""
        return PARTNERS.get(self.policy.model) if self.reward.model == "auto" else self.reward.model
