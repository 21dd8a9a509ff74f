"""What a caller from elsewhere may name: paths below one root, models that are known, parts that come with palmette."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palmette import registry
from palmette.config import check_config, load_config
from palmette.errors import ConfigError
from palmette.planner.models.find_shape import known_config
from palmette.profiles.find import shipped_profiles
from palmette.settings import Config
from palmette.units import one_line
from palmette.zoo.catalog import ENTRIES

_PARTS = {
    "search.strategy": "strategy", "train.algorithm": "algorithm", "train.credit": "credit", "reward.score": "scorer",
    "task.judge": "judge", "policy.backend": "backend", "train.eval_strategy": "strategy",
}  # fmt: skip
_MODELS = ("policy.model", "reward.model", "reward.small_model", "embedder.model", "train.critic")
_FILES = ("policy.adapter", "reward.adapter", "sft.data", "prm.data", "train.eval_task")
_REFUSED = ("out", "policy.address", "policy.served_model", "train.log_to")
_REWARDS = ("judge", "score", "gym")


def inside(root: Path, name: str) -> Path:
    """Return a path below the root; raise ConfigError for one that is not, by whatever way."""
    if "\0" in name or not name.strip():
        raise ConfigError("give the path of a folder or file below the root")
    found = (root / Path(name).expanduser()).resolve()
    if not found.is_relative_to(root.resolve()):
        raise ConfigError(f"{one_line(name, 120)} is not below the root that this server may read")
    return found


def checked_config(settings: Mapping[str, Any], root: Path) -> Config:
    """Return the config with these dotted settings; raise ConfigError for one that names what a caller must not.

    No code is imported, nothing outside the root is read, and no address is asked.
    """
    for key, value in settings.items():
        _check(key, value, root)
    return load_config(None, settings, given_by="settings")


def config_of_table(values: Mapping[str, Any], root: Path) -> Config:
    """Return the config that nested tables hold, as `checked_config` does."""
    flat: dict[str, Any] = {}
    for table, keys in values.items():
        flat |= {f"{table}.{key}": value for key, value in keys.items()} if isinstance(keys, Mapping) else {table: keys}
    for key, value in flat.items():
        _check(key, value, root)
    return check_config(values, {}, "config")


def may_read(config: Config, root: Path) -> bool:
    """Tell whether a recorded config names nothing that a caller must not: its models are known, or below the root."""
    models = (config.policy.model, config.reward.model, config.reward.small_model, config.embedder.model)
    try:
        for model in (*models, config.train.critic):
            if model is not None:
                _check_model("model", model, root)
    except ConfigError:
        return False
    return True


def _check(key: str, value: Any, root: Path) -> None:
    if key in _REFUSED:
        raise ConfigError(f"{key} cannot be set from here")
    if key in _PARTS and isinstance(value, str) and value != "auto" and value not in registry.built_ins(_PARTS[key]):
        known = ", ".join(registry.built_ins(_PARTS[key]))
        raise ConfigError(f"{key} {one_line(value, 80)!r} does not come with palmette: choose {known}")
    if key in _MODELS and isinstance(value, str):
        _check_model(key, value, root)
    if key in _FILES and isinstance(value, str):
        inside(root, value)
    if (
        key == "task.name"
        and isinstance(value, str)
        and value not in ("ladder", "words")
        and not value.startswith("rg:")
    ):
        inside(root, value)
    if key == "reward.profile" and value is not None and value not in shipped_profiles():
        raise ConfigError(f"reward.profile: choose one of {', '.join(shipped_profiles())}")
    if key == "train.rewards" and isinstance(value, Mapping) and not set(value) <= set(_REWARDS):
        raise ConfigError(f"train.rewards: choose {', '.join(_REWARDS)}")


def _check_model(key: str, value: str, root: Path) -> None:
    if value in ("auto", "head", *ENTRIES) or known_config(value) is not None:
        return
    if registry.is_reference(value):
        raise ConfigError(f"{key} {one_line(value, 80)!r} is code of one's own, which is not imported from here")
    if not inside(root, value).is_dir():
        raise ConfigError(f"{key} {one_line(value, 80)!r} is no model that is known, and no folder below the root")
