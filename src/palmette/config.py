"""What a run is told: pydantic models, YAML, dotted overrides, every check in one pass."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from palmette import registry
from palmette.errors import ConfigError
from palmette.strategy import Strategy, make_strategy, settings_of
from palmette.units import nearest, one_line, parse_bytes

Device = str
Aggregate = Literal["last", "min", "mean", "prod"]
Vote = Literal["best", "majority", "weighted"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["none", "bfloat16", "int8"]
_DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
PARTNERS = {"seedling": "seedling-ripe"}
READ_BY_LIKELIHOOD = ("seedling-ripe",)
"""Models of the zoo that score by what they expect."""


RENAMED = {
    ("search", "fold"): "aggregate",
    ("policy", "weights"): "quantize",
    ("reward", "weights"): "quantize",
    ("train", "optimizer"): None,
    ("train", "logits"): None,
}
"""Keys of earlier versions, with what they are called now; None where they are gone."""

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a layer that LoRA may be put on."""

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
    """A table of settings: unknown keys, numbers as texts, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PolicySettings(_Settings):
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


class RewardSettings(_Settings):
    """The model that scores steps; null for none, `auto` for the one trained for the policy.

    `score` tells how: by a scalar head, by how much a causal language model expects the step, or by another scorer.
    """

    model: str | None = Field("auto", min_length=1)
    score: str = Field("auto", min_length=1)
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
    judge: str = Field("auto", min_length=1)
    verify_seconds: float = Field(5.0, gt=0, le=3600)


def _split_search(values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what belongs to the strategy and what belongs to every search, of a table `search`."""
    shared = [key for key in SearchSettings.model_fields if key != "options" and key in values]
    return {str(key): values[key] for key in values if key not in shared}, {key: values[key] for key in shared}


class SearchSettings(_Settings):
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
        own, shared = _split_search(values)
        return {**shared, "options": own}

    @model_serializer(mode="wrap")
    def _with_options(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        options = values.pop("options")
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
                part, declared.model_validate(own), width=self.width, first_step_tokens=self.first_tokens
            )
        except TypeError as error:
            raise ConfigError(f"search.strategy {self.strategy}: {error}") from error


class EmbedderSettings(_Settings):
    """The SentenceTransformer that tells which steps say the same; loaded only where a strategy uses clusters.

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
    optimizer: Literal["adamw"] = "adamw"
    optimizer_dtype: Dtype = "float32"
    questions: int = Field(16, ge=1, le=_LARGEST_COUNT)
    group_size: int = Field(8, ge=1, le=65_536)
    response_tokens: int = Field(1024, ge=1, le=_LARGEST_COUNT)
    micro_batch_tokens: int = Field(4096, ge=1, le=_LARGEST_COUNT)
    gradient_checkpointing: bool = True
    logits: Literal["chunked", "inplace", "plain"] = "chunked"
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

    def has_scores(self) -> bool:
        """Tell whether steps are scored: by a reward model, or by a scorer of the user's own."""
        return self.partner() is not None or not _reads_model(self.reward.score)

    def partner(self) -> str | None:
        """Return the reward model: the one named, or for `auto` the one that was trained for the policy, if any."""
        return PARTNERS.get(self.policy.model) if self.reward.model == "auto" else self.reward.model


def known_keys() -> list[str]:
    """List every dotted key a config may hold, those of all built-in strategies among them."""
    keys = _keys(Config, "")
    for name in registry.built_ins("strategy"):
        keys += _keys(settings_of(registry.find("strategy", name)), "search.")
    return list(dict.fromkeys(keys))


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    keys = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += _keys(kind, f"{prefix}{name}.")
        elif f"{prefix}{name}" != "search.options":
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


def check_config(values: Mapping[str, Any], sources: Mapping[str, str], origin: str, *, imports: bool = True) -> Config:
    """Turn plain values into a Config with nothing left to choose. `sources` tells keys that are not from `origin`.

    Without `imports` no code of the user's own is imported, for files that come from elsewhere: what a strategy of
    theirs would have checked stays as it is written.
    """
    faults: list[Any] = []
    config: Config | None = None
    try:
        config = _named_parts(Config.model_validate(values))
    except ValidationError as error:
        faults = list(error.errors())
    search = values.get("search")
    told = dict(search) if isinstance(search, Mapping) else {}
    strategy = told.get("strategy", "best_of_n")
    options, _ = _split_search(told)
    if isinstance(strategy, str) and strategy and (imports or strategy in registry.built_ins("strategy")):
        options, wrong = _checked_options(strategy, options, sources.get("search.strategy", origin))
        faults += wrong
    if faults:
        said = [_explain(item, sources, origin) for item in faults[:5]]
        more = [f"and {len(faults) - 5} more"] if len(faults) > 5 else []
        raise ConfigError("; ".join(said + more)) from None
    assert config is not None
    config = config.model_copy(update={"search": config.search.model_copy(update={"options": options})})
    if imports:
        _check_uses(config, origin)
    return config


def recorded_config(values: Mapping[str, Any], origin: str, *, imports: bool = True) -> Config:
    """Return the config that a run was started with, also where an earlier version wrote it under other keys."""
    tables = {table: dict(keys) if isinstance(keys, Mapping) else keys for table, keys in values.items()}
    for (table, key), new in RENAMED.items():
        if isinstance(tables.get(table), dict) and key in tables[table]:
            value = tables[table].pop(key)
            if new is not None:
                tables[table][new] = "none" if value == "as_is" else value
    return check_config(tables, {}, origin, imports=imports)


def _reads_model(score: str) -> bool:
    """Tell whether a way to score reads the reward model; any other name stands for a scorer of its own."""
    return score == "auto" or score in registry.built_ins("scorer")


def _named_parts(config: Config) -> Config:
    """Return the config with `auto` decided and parts that are named in the place of a model where they belong."""
    policy, reward = config.policy, config.reward
    if registry.is_own("backend", policy.model):
        policy = policy.model_copy(update={"backend": policy.model})
    if reward.model is not None and registry.is_own("scorer", reward.model):
        reward = reward.model_copy(update={"score": reward.model, "model": None})
    model, score = reward.model, reward.score
    if model == "auto":
        model = config.partner() if _reads_model(score) else None
    if score == "auto":
        score = "likelihood" if model in READ_BY_LIKELIHOOD else "head"
    reward = reward.model_copy(update={"model": model, "score": score})
    return config.model_copy(update={"policy": policy, "reward": reward})


def _checked_options(strategy: str, options: dict[str, Any], origin: str) -> tuple[dict[str, Any], list[Any]]:
    """Return a strategy's own settings with their defaults, and what is wrong with them.

    A key that another built-in strategy declares is checked by that one and kept: one file serves several strategies.
    """
    try:
        declared = settings_of(registry.find("strategy", strategy))
    except ConfigError as error:
        raise ConfigError(f"{origin}: search.strategy: {error}") from error
    faults: list[Any] = []
    checked: dict[str, Any] = {}
    others = {key: value for key, value in options.items() if key not in declared.model_fields}
    built_in = [settings_of(registry.find("strategy", name)) for name in registry.built_ins("strategy")]
    for model in dict.fromkeys((declared, *built_in)):
        if model is declared:
            own = {key: value for key, value in options.items() if key in model.model_fields}
        else:
            own = {key: others.pop(key) for key in list(others) if key in model.model_fields}
        try:
            values = model.model_validate(own).model_dump(mode="json")
            checked |= values if model is declared else {key: values[key] for key in own}
        except ValidationError as error:
            faults += [{**item, "loc": ("search", *item["loc"])} for item in error.errors()]
    faults += [{"loc": ("search", key), "type": "extra_forbidden", "input": value} for key, value in others.items()]
    return checked, faults


def _check_uses(config: Config, origin: str) -> None:
    """Raise ConfigError where the strategy uses what the run does not have, or a budget is set that it ignores."""
    search = config.search
    uses = search.build_strategy().uses
    if "scores" in uses and not config.has_scores():
        raise ConfigError(
            f"{origin}: search.strategy {search.strategy!r} goes by scores, and there is no reward model: "
            f"set reward.model, or search.strategy to 'best_of_n'. Any language model can judge: "
            f"--reward {config.policy.model} --set reward.score=likelihood"
        )
    if search.kv_budget is not None and "room" not in uses:
        raise ConfigError(
            f"{origin}: search.kv_budget is not kept by strategy {search.strategy!r}: "
            f"set search.strategy to 'ets', or leave search.kv_budget out"
        )


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
        table, _, key = dotted.partition(".")
        if RENAMED.get((table, key)):
            return f"{origin}: {dotted!r} is called '{table}.{RENAMED[table, key]}' now"
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
