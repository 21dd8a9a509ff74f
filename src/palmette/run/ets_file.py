"""Parameter files of the original ETS release, read as palmette's own settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.units import nearest
from palmette.yaml_file import read_yaml

_METHODS = {"softmax_costmodel": "ets", "softmax": "rebase", "beam_search": "beam", "dvts": "dvts"}
_MODEL = "the original's name for a prompt format and its tags; name the model itself with {flag}"


@dataclass(frozen=True)
class EtsFile:
    """What a parameter file became: settings by dotted key, and a note for each of its own keys."""

    settings: dict[str, Any]
    notes: tuple[str, ...]


def read_ets_file(path: Path) -> EtsFile:
    """Read a file of the original release. Raises ConfigError for a key or a method that it does not know."""
    settings: dict[str, Any] = {}
    told = []
    for key, value in read_yaml(path).items():
        if not isinstance(value, str | int | float | None):
            raise ConfigError(f"{path}: {str(key)[:80]} cannot be a {type(value).__name__}: give one value")
        if key in _LEFT_OUT:
            told.append(f"{key}: {value!r} is not used: {_LEFT_OUT[key]}")
            continue
        if key not in _KEYS:
            guess = nearest(str(key), [*_KEYS, *_LEFT_OUT])
            hint = f" Did you mean {guess!r}?" if guess else f" It reads {', '.join([*_KEYS, *_LEFT_OUT])}."
            raise ConfigError(f"{path}: unknown key {str(key)[:80]!r} for --ets-config.{hint}")
        ours, change = _KEYS[key]
        settings[ours] = change(value, path)
        told.append(f"{key}: {value!r} becomes {ours}: {settings[ours]}")
    if "search.strategy" not in settings:
        settings["search.strategy"] = "ets"
        told.append("select_method is not there: search.strategy: ets")
    if settings["search.strategy"] == "ets":
        for ours, value in _AS_PUBLISHED.items():
            settings[ours] = value
            told.append(f"as published, {ours}: {value}")
    return EtsFile(settings, tuple(told))


def as_device(text: str) -> str:
    """Return a device as palmette names it: the original's `1` is `cuda:1`."""
    return f"cuda:{int(text)}" if text.isdecimal() else text


def _as_it_is(value: Any, path: Path) -> Any:
    return value


def _number(value: Any, path: Path) -> Any:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
    return float(value) if is_whole else value


def _strategy(value: Any, path: Path) -> str:
    if not isinstance(value, str) or value not in _METHODS:
        raise ConfigError(f"{path}: select_method {str(value)[:80]!r} is none of {', '.join(_METHODS)}")
    return _METHODS[value]


def _folder(value: Any, path: Path) -> Any:
    return value.rstrip("/") or value if isinstance(value, str) else value


_KEYS: Mapping[str, tuple[str, Callable[[Any, Path], Any]]] = {
    "temperature": ("policy.temperature", _number),
    "max_step_tokens": ("search.step_tokens", _as_it_is),
    "max_tokens": ("search.total_tokens", _as_it_is),
    "select_method": ("search.strategy", _strategy),
    "num_threads": ("search.questions_in_flight", _as_it_is),
    "softmax_temperature": ("search.rebase_temperature", _number),
    "store_path": ("out", _folder),
    "width": ("search.width", _as_it_is),
    "lambdac": ("search.lambda_kv", _number),
    "lambdas": ("search.lambda_diversity", _number),
}
_LEFT_OUT = {
    "reward_model_type": _MODEL.format(flag="--reward"),
    "policy_model_type": _MODEL.format(flag="--policy"),
}
_AS_PUBLISHED = {"search.kv_cost": "nodes", "search.aggregate": "last"}
"""What the original's code does without a key for it: every node costs alike, and a leaf goes by its last score."""
