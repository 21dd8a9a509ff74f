"""What a run is told: pydantic models, YAML, dotted overrides, every check in one pass."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from palmette.errors import ConfigError
from palmette.units import one_line, parse_bytes

Device = str
StrategyName = Literal["best_of_n", "beam", "dvts", "rebase", "ets"]
CostModel = Literal["nodes", "tokens"]
Aggregate = Literal["last", "min", "mean", "prod"]
Vote = Literal["best", "majority", "weighted"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["none", "bfloat16", "int8"]
_DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
SCORED_STRATEGIES = ("beam", "dvts", "rebase", "ets")
PARTNERS = {"seedling": "seedling-ripe"}
READ_BY_LIKELIHOOD = ("seedling-ripe",)
"""Models of the zoo that score by what they expect."""


LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a layer that LoRA may be put on."""

PUBLISHED_DIVERSITY = {16: 1.5, 64: 1.4, 256: 1.45}
"""The diversity weights that ETS publishes, by width."""

_LARGEST_SEED = 2**63 - 1
_LARGEST_COUNT = 10**7


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


Budget = Annotated[Any, AfterValidator(lambda text: None if text is None else _amount_of_memory(text))]
"""An amount of memory, or null."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PolicySettings(_Settings):
    """The model that proposes steps. Sampling defaults are the ones ETS and REBASE publish: temperature 1, no cut."""

    model: str = Field("seedling", min_length=1)
    adapter: str | None = Field(None, min_length=1)
    dtype: Dtype = "float32"
    quantize: Quantize = "none"
    device: Device = Field("auto", pattern=_DEVICE)
    temperature: Annotated[float, AfterValidator(_greedy_or_warm)] = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=_LARGEST_COUNT)
    min_p: float = Field(0.0, ge=0, le=1)
    batch_rows: int = Field(512, ge=1, le=65_536)


class RewardSettings(_Settings):
    """The model that scores steps; null for none, `auto` for the one trained for the policy.

    `score` tells how: by a scalar head, or by how much a causal language model expects the step.
    """

    model: str | None = Field("auto", min_length=1)
    score: Literal["auto", "head", "likelihood"] = "auto"
    adapter: str | None = Field(None, min_length=1)
    dtype: Dtype = "float32"
    quantize: Quantize = "none"
    device: Device = Field("auto", pattern=_DEVICE)
    batch_rows: int = Field(512, ge=1, le=65_536)
    kv_budget: Budget = None


class TaskSettings(_Settings):
    """Where questions come from; null formats mean the task's own."""

    name: str = Field("ladder", min_length=1)
    questions: int = Field(50, ge=1, le=_LARGEST_COUNT)
    skip: int = Field(0, ge=0, le=_LARGEST_COUNT)
    seed: int = Field(0, ge=0, le=_LARGEST_SEED)
    grade: int = Field(3, ge=1, le=9)
    split: Literal["train", "test"] = "test"
    system: str | None = None
    prompt: str | None = Field(None, min_length=1)
    step_end: Annotated[str, AfterValidator(_with_line_breaks)] | None = Field(None, min_length=1)
    stop: Annotated[str, AfterValidator(_with_line_breaks)] | None = Field(None, min_length=1)
    verify_seconds: float = Field(5.0, gt=0, le=3600)


class SearchSettings(_Settings):
    """How the tree grows. Limits are those of the ETS release: 25 steps, 256 tokens a step, 1024 in all."""

    strategy: StrategyName = "best_of_n"
    width: int = Field(16, ge=1, le=65_536)
    depth: int = Field(25, ge=1, le=_LARGEST_COUNT)
    step_tokens: int = Field(256, ge=1, le=_LARGEST_COUNT)
    total_tokens: int = Field(1024, ge=1, le=_LARGEST_COUNT)
    fold: Aggregate = "prod"
    vote: Vote = "weighted"
    rebase_temperature: float = Field(0.2, ge=0.001, le=1000)
    lambda_kv: float = Field(1.25, ge=0, le=1000)
    lambda_diversity: float | None = Field(None, ge=0, le=1000)
    kv_cost: CostModel = "nodes"
    kv_budget: Budget = None
    first_step_tokens: int = Field(32, ge=1, le=_LARGEST_COUNT)
    questions_in_flight: int = Field(16, ge=1, le=_LARGEST_COUNT)

    @property
    def diversity(self) -> float:
        """Return the weight of diversity: the one given, or the one published for the nearest width."""
        if self.lambda_diversity is not None:
            return self.lambda_diversity
        return PUBLISHED_DIVERSITY[min(PUBLISHED_DIVERSITY, key=lambda width: abs(math.log(self.width / width)))]

    @property
    def groups_steps(self) -> bool:
        """Tell whether steps are grouped by meaning, so that an embedder is needed."""
        return self.strategy == "ets" and self.diversity > 0


class EmbedderSettings(_Settings):
    """The SentenceTransformer that tells which steps say the same; loaded only where `ets` values diversity.

    Device `auto` is the reward model's.
    """

    model: str = Field("minilm", min_length=1)
    device: Device = Field("auto", pattern=_DEVICE)
    batch_rows: int = Field(128, ge=1, le=65_536)
    cut: float = Field(0.05, ge=0, le=2)


class MemorySettings(_Settings):
    """What there is, what the planner counts with, how memory is watched. `devices` null means the ones detected."""

    devices: Annotated[str | None, BeforeValidator(_devices_with_units)] = Field(None, min_length=1)
    inference_share: float = Field(0.95, gt=0, le=1)
    training_share: float = Field(0.90, gt=0, le=1)
    prompt_tokens: int = Field(256, ge=1, le=_LARGEST_COUNT)
    kv_holds: Literal["path", "width"] = "path"
    any_embed_device: bool = False
    guard: bool = True
    reclaim_least: Annotated[Any, AfterValidator(_amount_of_memory)] = "1GiB"
    sample_seconds: float = Field(0.1, ge=0.001, le=3600)


class TrainSettings(_Settings):
    """What an update holds; as yet only planned, not run."""

    method: Literal["full", "lora"] = "full"
    lora_rank: int = Field(16, ge=1, le=65_536)
    lora_targets: Annotated[str, AfterValidator(_targets)] = "all"
    optimizer_dtype: Dtype = "float32"
    questions: int = Field(16, ge=1, le=_LARGEST_COUNT)
    group_size: int = Field(8, ge=1, le=65_536)
    response_tokens: int = Field(1024, ge=1, le=_LARGEST_COUNT)
    micro_batch_tokens: int = Field(4096, ge=1, le=_LARGEST_COUNT)
    gradient_checkpointing: bool = True
    reference: Literal["none", "host"] = "none"


class Config(_Settings):
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

    @model_validator(mode="after")
    def _strategies_have_their_scores(self) -> "Config":
        if self.search.strategy in SCORED_STRATEGIES and self.partner() is None:
            raise ValueError(
                f"search.strategy {self.search.strategy!r} goes by scores, and there is no reward model: "
                f"set reward.model, or search.strategy to 'best_of_n'. Any language model can judge: "
                f"--reward {self.policy.model} --set reward.score=likelihood"
            )
        return self

    @model_validator(mode="after")
    def _budgets_are_kept(self) -> "Config":
        if self.search.kv_budget is not None and self.search.strategy != "ets":
            raise ValueError(
                f"search.kv_budget is kept by strategy 'ets' alone, and search.strategy is {self.search.strategy!r}: "
                f"set search.strategy to 'ets', or leave search.kv_budget out"
            )
        return self

    def partner(self) -> str | None:
        """Return the reward model: the one named, or for `auto` the one that was trained for the policy, if any."""
        return PARTNERS.get(self.policy.model) if self.reward.model == "auto" else self.reward.model


def known_keys(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """List every dotted key a config may hold."""
    keys = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += known_keys(kind, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return keys


def load_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML file (or none), lay dotted overrides over it and check everything at once.

    Raises ConfigError that names the file or the override, the key and, for an unknown key, the nearest known one.
    """
    values = read_yaml(path) if path else {}
    sources: dict[str, str] = {}
    for key, value in (overrides or {}).items():
        _insert(values, key, value)
        sources[key] = "command line"
    return check_config(values, sources, str(path) if path else "config")


def check_config(values: Mapping[str, Any], sources: Mapping[str, str], origin: str) -> Config:
    """Turn plain values into a Config with nothing left to choose. `sources` tells keys that are not from `origin`."""
    try:
        config = Config.model_validate(values)
        model, score = config.partner(), config.reward.score
        if score == "auto":
            score = "likelihood" if model in READ_BY_LIKELIHOOD else "head"
        return config.model_copy(update={"reward": config.reward.model_copy(update={"model": model, "score": score})})
    except ValidationError as error:
        faults = error.errors()
        said = [_explain(item, sources, origin) for item in faults[:5]]
        more = [f"and {len(faults) - 5} more"] if len(faults) > 5 else []
        raise ConfigError("; ".join(said + more)) from None


def parse_override(text: str) -> tuple[str, Any]:
    """Split `search.width=64` into its key and its value, read as YAML reads a scalar."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as KEY=VALUE, for example --set search.width=64")
    try:
        parsed = _parse_yaml(value)
        # No key takes a table: {question} is meant as text.
        return key.strip(), value if isinstance(parsed, dict | list) else parsed
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError):
        raise ConfigError(f"--set {text}: the value is not valid YAML; put quotes around text") from None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelled one most likely meant."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-3 is a number, and a key given twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a table; raise on a key that stands twice."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the table that a YAML file holds; raise ConfigError where it holds none."""
    try:
        values = _parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: nested too deep") from None
    except (yaml.YAMLError, ValueError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: not valid YAML{place}: {getattr(error, 'problem', None) or error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a table of keys, this file holds a {type(values).__name__}")
    return values


def _insert(values: dict[str, Any], dotted: str, value: Any) -> None:
    *folders, last = dotted.split(".")
    table = values
    for folder in folders:
        below = table.setdefault(folder, {})
        if not isinstance(below, dict):
            raise ConfigError(f"cannot set {dotted!r}: {folder!r} holds a value, not a table")
        table = below
    table[last] = value


def _explain(item: Any, sources: Mapping[str, str], origin: str) -> str:
    dotted = ".".join(str(part) for part in item["loc"])
    origin = sources.get(dotted, origin)
    if not dotted:
        return f"{origin}: {item['msg'].removeprefix('Value error, ')}"
    if item["type"] == "extra_forbidden":
        guess = nearest(dotted, known_keys())
        hint = f" Did you mean {guess!r}?" if guess else " See docs/config.md for the known keys."
        return f"{origin}: unknown key {dotted!r}.{hint}"
    given = item["input"]
    # A scalar is shown, anything larger only named: a few aliases in YAML can stand for gigabytes.
    shown = one_line(repr(given), 80) if isinstance(given, str | float | bool | None) else f"a {type(given).__name__}"
    if isinstance(given, int) and not isinstance(given, bool):
        shown = str(given) if abs(given) < 10**18 else "so large a number"
    if item["type"] == "literal_error":
        expected = str(item["ctx"]["expected"])
        guess = nearest(shown.strip("'"), [part.strip("'") for part in expected.replace(" or ", ", ").split(", ")])
        hint = f" Did you mean {guess!r}?" if guess else ""
        return f"{origin}: {dotted} cannot be {shown}: choose {expected}.{hint}"
    message = item["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{origin}: {dotted} cannot be {shown}: {message}"
