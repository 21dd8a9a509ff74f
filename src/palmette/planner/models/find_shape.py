"""A model's name turned into its shape, without a model library, a conversion or a download."""

import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.planner.models.on_meta import count_on_meta
from palmette.planner.models.shape import ModelShape, UnknownFamilyError, read_shape
from palmette.zoo.catalog import ENTRIES
from palmette.zoo.folder import read_json
from palmette.zoo.names import is_plausible_hub_id, likely_meant


@cache
def known_configs() -> dict[str, dict[str, Any]]:
    """Return the config values of public models by lowercase hub id; a fine-tune has those of its base model."""
    entries = json.loads(files("palmette.planner.models").joinpath("known.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        values = {key: value for key, value in entry.items() if key != "names"}
        for name in entry["names"]:
            assert name.lower() not in found, f"known.json lists {name} twice"
            found[name.lower()] = values
    return found


def known_config(name: str) -> dict[str, Any] | None:
    """Return the config values of a public model by its hub id, or by the part after the slash; None if unknown."""
    configs = known_configs()
    wanted = name.lower()
    if wanted in configs:
        return configs[wanted]
    return next((values for full, values in configs.items() if full.partition("/")[2] == wanted), None)


def find_shape(name: str, *, as_encoder: bool = False, may_build: bool = True) -> ModelShape:
    """Return the shape of a zoo model, a local folder, a model in the hub's cache, or a well-known public model.

    A family that is not declared is counted by transformers, in a process of its own, if `may_build`. Raises
    ConfigError for a name that is none of these, BackendError for a model whose sizes cannot be found.
    """
    values = find_config(name)
    try:
        return read_shape(name, values, as_encoder=as_encoder)
    except UnknownFamilyError:
        if not may_build or as_encoder:
            raise
    return count_on_meta(name, values)


def find_config(name: str) -> dict[str, Any]:
    """Return the values of a model's config.json: from its folder, or those known of a public model.

    Raises ConfigError for a name that is neither.
    """
    folder = _folder(name)
    values = known_config(name) if folder is None else read_json(folder / "config.json")
    if values is not None:
        return values
    problem = f"the shape of model {name!r} is not known"
    if os.path.isdir(os.path.expanduser(name)):
        raise ConfigError(f"{problem}: the folder has no config.json. Copy the model's own there")
    meant = _likely_meant(name)
    if meant is not None:
        raise ConfigError(f"{problem}. Did you mean {meant!r}?")
    download = f", or where the hub can be reached: hf download {name} config.json" if is_plausible_hub_id(name) else ""
    raise ConfigError(
        f"{problem}: it is no folder here and no model that palmette lists. "
        f"Give a local folder with its config.json{download}"
    )


def _likely_meant(name: str) -> str | None:
    """Return the known name that was likely misspelled; without an organization in it, by the part after the slash."""
    if "/" in name:
        return likely_meant(name, known_configs())
    return likely_meant(name, [*ENTRIES, *(full.rpartition("/")[2] for full in known_configs())])


def _folder(name: str) -> Path | None:
    """Return the local folder of the model's config.json: the zoo's, the user's, or the hub's cache; None if none."""
    entry = ENTRIES.get(name)
    if entry is not None:
        weights = entry.weights_path()
        return None if weights is None or entry.weights.endswith(".gguf") else weights.parent
    folder = Path(os.path.expanduser(name))
    if os.path.isfile(folder / "config.json"):
        return folder
    if not is_plausible_hub_id(name):
        return None
    snapshots = _hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    return next((config.parent for config in sorted(snapshots.glob("*/config.json"))), None)


def _hub_cache() -> Path:
    """Return where huggingface_hub keeps its downloads, by the same environment variables."""
    shared = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{shared}/huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(cache)))


def adapter_bytes(folder: str | None) -> int:
    """Return the size of an adapter's weights; 0 without an adapter or where it has no safetensors file."""
    if folder is None:
        return 0
    weights = Path(os.path.expanduser(folder)) / "adapter_model.safetensors"
    return weights.stat().st_size if weights.is_file() else 0
