"""From a file and overrides to a checked config: every fault is found in one pass and told in one line each."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from palmette import registry
from palmette.errors import ConfigError
from palmette.profiles.find import profile_for, read_profile, shipped_profiles
from palmette.settings import (
    FORMATS,
    READ_BY_LIKELIHOOD,
    Config,
    RewardSettings,
    SearchSettings,
    Settings,
    TrainSettings,
    reads_model,
    split_options,
)
from palmette.strategy import read_settings, settings_of
from palmette.units import nearest, one_line
from palmette.yaml_file import read_yaml

Table = TypeVar("Table", bound=Settings)

RENAMED = {
    ("search", "fold"): "search.aggregate",
    ("policy", "weights"): "policy.quantize",
    ("reward", "weights"): "reward.quantize",
    ("train", "group_size"): "search.width",
    ("train", "response_tokens"): "search.total_tokens",
    ("train", "logits"): None,
}
"""Keys of earlier versions, with what they are called now; None where they are gone."""

OTHER_WORDS = {
    "lr": "train.learning_rate", "beta": "train.kl_weight", "kl_coef": "train.kl_weight", "epsilon": "train.clip_low",
    "clip": "train.clip_low", "clip_ratio": "train.clip_low", "epsilon_high": "train.clip_high",
    "num_generations": "search.width", "n": "search.width", "batch_size": "train.questions",
    "steps": "train.updates", "max_steps": "train.updates", "iterations": "train.updates",
    "max_completion_length": "search.total_tokens", "max_new_tokens": "search.total_tokens",
    "max_response_length": "search.total_tokens", "max_prompt_length": "train.prompt_tokens",
    "warmup_steps": "train.warmup_updates", "lr_scheduler_type": "train.schedule", "max_grad_norm": "train.max_norm",
    "num_iterations": "train.epochs", "ppo_epochs": "train.epochs", "reward_funcs": "train.rewards",
    "save_steps": "train.checkpoint_every", "save_total_limit": "train.keep_checkpoints",
    "eval_steps": "train.eval_every", "report_to": "train.log_to",
}  # fmt: skip
"""What TRL, verl and transformers call our keys."""

_WITH_OPTIONS: dict[str, tuple[str, type[Settings]]] = {
    "search": ("strategy", SearchSettings),
    "train": ("algorithm", TrainSettings),
}
"""Tables in which a part is named, whose own settings stand beside the table's: the kind of part, which is also the key
that names it, and the table."""


_MEANT = {"search": "search", "train": "training"}
"""What a table is about, in messages."""


def known_keys() -> list[str]:
    """List every dotted key a config may hold, those of all built-in strategies among them."""
    keys = _keys(Config, "")
    for table, (kind, _) in _WITH_OPTIONS.items():
        for name in registry.built_ins(kind):
            keys += _keys(settings_of(registry.find(kind, name)), f"{table}.")
    for name in registry.built_ins("credit"):
        keys += _keys(settings_of(registry.find("credit", name)), "train.")
    return list(dict.fromkeys(keys))


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    keys = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += _keys(kind, f"{prefix}{name}.")
        elif name != "options":
            keys.append(f"{prefix}{name}")
    return keys


def load_config(
    base: Config | str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    given_by: str = "command line",
    strategies: Sequence[str] = (),
) -> Config:
    """Take a YAML file, a Config or nothing, lay dotted overrides over it and check everything at once.

    Keys that one of the other `strategies` declares are kept for it. Raises ConfigError that names the file, or who the
    override was `given_by`, the key and, for an unknown key, the nearest known one.
    """
    overrides, origin = overrides or {}, "config"
    values: dict[str, Any] = {}
    if isinstance(base, Config):
        values, strategies = _told(base, overrides), (*strategies, base.search.strategy)
    elif isinstance(base, str | os.PathLike):
        values, origin = read_yaml(Path(base)), str(base)
    elif base is not None:
        raise ConfigError(f"config: give the path of a YAML file or a Config, not a {type(base).__name__}")
    for key, value in overrides.items():
        _insert(values, key, value)
    config = check_config(values, dict.fromkeys(overrides, given_by), origin, strategies=strategies)
    if isinstance(base, Config):
        config.hold(*base.given)
    return config


def _told(config: Config, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config was told, without what was decided from it and from what the overrides replace."""
    values = config.model_dump(mode="json", exclude_unset=True)
    if "policy.model" in overrides and config.policy.backend == config.policy.model:
        values.get("policy", {}).pop("backend", None)
    if "reward.model" in overrides and config.reward.model is None and not reads_model(config.reward.score):
        values.get("reward", {}).pop("score", None)
    for table, (kind, _) in _WITH_OPTIONS.items():
        settings = getattr(config, table)
        name = getattr(settings, kind)
        if overrides.get(f"{table}.{kind}", name) != name:
            declared = settings_of(registry.find(kind, name))
            own = {key: value for key, value in settings.options.items() if key in declared.model_fields}
            told = declared.model_construct(**own).model_dump(mode="json", exclude_defaults=True, warnings=False)
            values[table] = {
                key: value for key, value in values.get(table, {}).items() if key not in own or key in told
            }
    return values


def check_config(
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    origin: str,
    *,
    imports: bool = True,
    strategies: Sequence[str] = (),
) -> Config:
    """Turn plain values into a Config with nothing left to choose. `sources` tells keys that are not from `origin`.

    Without `imports` no code of the user's own is imported, for files that come from elsewhere: what a strategy of
    theirs would have checked stays as it is written.
    """
    faults: list[Any] = []
    cause: ConfigError | None = None
    config: Config | None = None
    try:
        config = _named_parts(Config.model_validate(values))
    except ValidationError as error:
        faults = list(error.errors())
    options_of: dict[str, dict[str, Any]] = {}
    for table, (kind, model) in _WITH_OPTIONS.items():
        written = values.get(table)
        told = dict(written) if isinstance(written, Mapping) else {}
        name = told.get(kind, model.model_fields[kind].default)
        options_of[table], _ = split_options(model, told)
        if isinstance(name, str) and name and (imports or name in registry.built_ins(kind)):
            others = strategies if kind == "strategy" else ()
            try:
                checked = _checked_options(table, name, options_of[table], others, keeps_unknown=not imports)
                options_of[table], wrong = checked
                faults += wrong
            except ConfigError as error:
                cause = error
                faults.append({"loc": (table, kind), "type": "no_part", "input": name, "msg": str(error)})
    if faults:
        said = [_explain(item, sources, origin) for item in faults[:5]]
        more = [f"and {len(faults) - 5} more"] if len(faults) > 5 else []
        raise ConfigError("; ".join(said + more)) from cause
    assert config is not None
    config = config.model_copy(
        update={
            table: getattr(config, table).model_copy(update={"options": options})
            for table, options in options_of.items()
        }
    )
    if imports:
        _check_uses(config, origin)
    return config


def recorded_config(values: Mapping[str, Any], origin: str, *, imports: bool = True) -> Config:
    """Return the config that a run was started with, also where an earlier version wrote it under other keys."""
    tables = {table: dict(keys) if isinstance(keys, Mapping) else keys for table, keys in values.items()}
    for (table, key), new in RENAMED.items():
        if isinstance(tables.get(table), dict) and key in tables[table]:
            value = tables[table].pop(key)
            new_table, _, new_key = (new or "").rpartition(".")
            if new_table == table:
                tables[table][new_key] = "none" if value == "as_is" else value
    if isinstance(tables.get("task"), dict):
        tables["task"].setdefault("format", "math")  # As all files were put before there was a choice.
    return check_config(tables, {}, origin, imports=imports)


def _named_parts(config: Config) -> Config:
    """Return the config with `auto` decided and parts that are named in the place of a model where they belong."""
    policy, reward = config.policy, config.reward
    if registry.is_own("backend", policy.model):
        policy = _decided(policy, backend=policy.model)
    if reward.model is not None and registry.is_own("scorer", reward.model):
        reward = reward.model_copy(update={"score": reward.model, "model": None})
    if reward.model == "auto":
        reward = _decided(reward, model=config.partner() if reads_model(reward.score) else None)
    if reward.score == "auto":
        reward = _with_score(reward)
    if reward.score == "profile" and reward.profile is None and reward.model is not None:
        reward = _decided(reward, profile=profile_for(reward.model))
    task = config.task
    if task.format == "auto":
        task = _decided(task, format=FORMATS.get(policy.model, "math"))
    return config.model_copy(update={"policy": policy, "reward": reward, "task": task})


def _with_score(reward: RewardSettings) -> RewardSettings:
    """Return the reward model's settings with `auto` decided: by its profile, if it has one."""
    if reward.model in READ_BY_LIKELIHOOD:
        return _decided(reward, score="likelihood")
    has_profile = reward.profile is not None or (reward.model is not None and profile_for(reward.model) is not None)
    return _decided(reward, score="profile" if has_profile else "head")


def _decided(table: Table, **decided: Any) -> Table:
    """Return a table with these values. They count as unset: other settings laid over the config decide them anew."""
    copy = table.model_copy(update=decided)
    copy.model_fields_set.difference_update(decided)
    return copy


def _checked_options(
    table: str, name: str, options: dict[str, Any], others_named: Sequence[str], *, keeps_unknown: bool
) -> tuple[dict[str, Any], list[Any]]:
    """Return the own settings of the part that a table names with their defaults, and what is wrong with them.

    A key that another built-in part of its kind, or one of `others_named`, declares is checked by that one and kept:
    one file serves several strategies, or algorithms.
    Raises ConfigError for a name that stands for no part, and for one whose settings cannot be keys of a config.
    """
    kind, model_of_table = _WITH_OPTIONS[table]
    declared = settings_of(registry.find(kind, name))
    for key in declared.model_fields:
        if key in model_of_table.model_fields:
            raise ConfigError(f"it declares {key!r}, which is a key of every {_MEANT[table]}: rename it")
    faults: list[Any] = []
    checked: dict[str, Any] = {}
    others = {key: value for key, value in options.items() if key not in declared.model_fields}
    known = [(kind, other) for other in dict.fromkeys((*registry.built_ins(kind), *others_named))]
    if table == "train":
        known += [("credit", other) for other in registry.built_ins("credit")]
    for model in dict.fromkeys((declared, *(settings_of(registry.find(*other)) for other in known))):
        if model is declared:
            own = {key: value for key, value in options.items() if key in model.model_fields}
        else:
            own = {key: others.pop(key) for key in list(others) if key in model.model_fields}
        try:
            values = read_settings(model, own).model_dump(mode="json")
            read_settings(model, values)  # As the run's events will give it back.
            checked |= values if model is declared else {key: values[key] for key in own}
        except ValidationError as error:
            # What another strategy requires is not asked of this one.
            wrong = [item for item in error.errors() if model is declared or item["type"] != "missing"]
            faults += [{**item, "loc": (table, *item["loc"])} for item in wrong]
            checked |= own
        except ValueError as error:
            told = one_line(str(error), 200)
            raise ConfigError(f"the settings of {kind} {name} cannot be recorded: {told}") from error
    if keeps_unknown:
        return {**checked, **others}, faults
    faults += [
        {"loc": (table, key), "type": "extra_forbidden", "input": value, "known": list(declared.model_fields)}
        for key, value in others.items()
    ]
    return checked, faults


def _check_uses(config: Config, origin: str) -> None:
    """Raise ConfigError where a part uses what the run does not have, or something is set that it ignores."""
    _check_profile(config.reward, origin)
    _check_small_model(config.reward, origin)
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
            f"set search.strategy to 'ets' or 'espalier', or leave search.kv_budget out"
        )


def _check_profile(reward: RewardSettings, origin: str) -> None:
    """Raise ConfigError for a profile that is missing, wrong or not used."""
    if reward.score == "profile" and reward.model is not None:
        if reward.profile is None:
            known = ", ".join(shipped_profiles())
            raise ConfigError(
                f"{origin}: reward.score 'profile' reads a model by its profile, and none is known for "
                f"{one_line(reward.model, 120)}: set reward.profile to a file or one of {known}"
            )
        read_profile(reward.profile)
    elif reward.profile is not None and reads_model(reward.score) and reward.score != "profile":
        raise ConfigError(
            f"{origin}: reward.profile is not used by reward.score {reward.score!r}: leave one of them out"
        )


def _check_small_model(reward: RewardSettings, origin: str) -> None:
    """Raise ConfigError for a second model that is missing or not used."""
    needs = reward.score == "likelihood_gain" and reward.model is not None
    if needs and reward.small_model is None:
        raise ConfigError(
            f"{origin}: reward.score 'likelihood_gain' compares reward.model with a smaller one: set reward.small_model"
        )
    if reward.small_model is not None and reads_model(reward.score) and reward.score != "likelihood_gain":
        raise ConfigError(
            f"{origin}: reward.small_model is not used by reward.score {reward.score!r}: set it to 'likelihood_gain'"
        )


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
    origin = next((told_by for key, told_by in sources.items() if f"{dotted}.".startswith(f"{key}.")), origin)
    if not dotted:
        return f"{origin}: {item['msg'].removeprefix('Value error, ')}"
    if item["type"] == "extra_forbidden":
        table, _, key = dotted.rpartition(".")
        keys = [*(f"{table}.{own}" for own in item.get("known", ())), *known_keys()]
        # The same word in another table first, then what others call it, then a likely misspelling: of the whole key,
        # if the last word too is like the known one (every key of a long table is like every other), or of that word.
        guess = next((known for known in keys if known.rpartition(".")[2] == key), None) or OTHER_WORDS.get(key)
        guess = guess or nearest(dotted, [known for known in keys if nearest(key, [known.rpartition(".")[2]])])
        if guess is None and (word := nearest(key, [known.rpartition(".")[2] for known in keys])):
            guess = next(known for known in keys if known.rpartition(".")[2] == word)
        if RENAMED.get((table, key)):
            return f"{origin}: {dotted!r} is called '{RENAMED[table, key]}' now"
        hint = f" Did you mean {guess!r}?" if guess else " See docs/config.md for the known keys."
        return f"{origin}: unknown key {dotted!r}.{hint}"
    if item["type"] == "missing":
        return f"{origin}: {dotted} is not set, and has no default"
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
