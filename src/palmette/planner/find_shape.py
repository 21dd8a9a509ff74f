"""A model's name turned into its shape, without a model library and without converting or fetching anything."""

import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError
from palmette.planner.shape import ModelShape, read_shape
from palmette.units import nearest
from palmette.zoo.catalog import ENTRIES
from palmette.zoo.folder import read_json


@cache
def known_configs() -> dict[str, dict[str, Any]]:
    """Return config values by lowercase name; a fine-tune stands beside the model whose numbers it has."""
    entries = json.loads(files("palmette.planner").joinpath("known.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        values = {key: value for key, value in entry.items() if key != "names"}
        for name in entry["names"]:
            assert name.lower() not in found, f"{name} stands twice"
            found[name.lower()] = values
    return found


def known_config(name: str) -> dict[str, Any] | None:
    """Return the config values of a public model by its hub id, or by the part after the slash; None if unknown."""
    configs = known_configs()
    wanted = name.lower()
    if wanted in configs:
        return configs[wanted]
    return next((values for full, values in configs.items() if full.partition("/")[2] == wanted), None)


def find_shape(name: str, *, as_encoder: bool = False) -> ModelShape:
    """Return the shape of a zoo model, a local folder, a hub's cached copy or a well-known public model.

    Raises ConfigError for a name of none of them, BackendError for a family whose sizes are not known.
    """
    return read_shape(name, find_config(name), as_encoder=as_encoder)


def find_config(name: str) -> dict[str, Any]:
    """Return the values of a model's config.json: those that lie here, or the ones known of a public model.

    Raises ConfigError for a name of neither.
    """
    folder = _folder(name)
    values = known_config(name) if folder is None else read_json(folder / "config.json")
    if values is not None:
        return values
    if os.path.isdir(os.path.expanduser(name)):
        raise ConfigError(
            f"the shape of model {name!r} is not known: the folder has no config.json. Copy the model's own there"
        )
    near = nearest(name.lower(), known_configs())
    hint = f"Did you mean {near!r}?" if near else "Give a local folder with its config.json."
    raise ConfigError(f"the shape of model {name!r} is not known: it is no folder here and no well-known model. {hint}")


def _folder(name: str) -> Path | None:
    """Return where the model's config.json lies, None where it lies nowhere here."""
    entry = ENTRIES.get(name)
    if entry is not None:
        weights = entry.weights_path()
        return None if weights is None or entry.weights.endswith(".gguf") else weights.parent
    folder = Path(os.path.expanduser(name))
    if os.path.isfile(folder / "config.json"):
        return folder
    if name.count("/") != 1:
        return None
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cached = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{name.replace('/', '--')}" / "snapshots"
    return next((config.parent for config in sorted(cached.glob("*/config.json"))), None)


def adapter_bytes(folder: str | None) -> int:
    """Return what an adapter's weights take, 0 for none."""
    if folder is None:
        return 0
    weights = Path(os.path.expanduser(folder)) / "adapter_model.safetensors"
    return weights.stat().st_size if weights.is_file() else 0
