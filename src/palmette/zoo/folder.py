"""Checks on a local model folder before a model library reads it."""

import json
from pathlib import Path
from typing import Any

from palmette.errors import BackendError, ConfigError
from palmette.zoo.header import read_header


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; raise ConfigError when the file is missing, BackendError when it is garbled."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent} is no model folder: it has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BackendError(f"{path} is damaged: {error}. Restore it from where it came") from error
    if not isinstance(content, dict):
        raise BackendError(f"{path} is damaged: it holds no JSON object. Restore it from where it came")
    return content


def check_weights(folder: Path, stem: str = "model") -> None:
    """Return when the folder's weights are whole safetensors, in one file or in shards; raise BackendError if not."""
    for path in weight_files(folder, stem):
        read_header(path)


def weight_files(folder: Path, stem: str = "model") -> list[Path]:
    """Return the safetensors file that holds the folder's weights, or its shards; raise BackendError without any."""
    single = folder / f"{stem}.safetensors"
    index = folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        placed = read_json(index).get("weight_map")
        if not isinstance(placed, dict):
            raise BackendError(f"{index} is damaged: it has no weight_map. Restore it from where it came")
        return [folder / shard for shard in sorted({str(name) for name in placed.values()})]
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found = f"only {pickles[0]}, a pickle, which may run code when read" if pickles else "none"
    raise BackendError(
        f"{folder} needs weights in {single.name}, it has {found}. "
        f"Save the model again with save_pretrained, which writes safetensors"
    )
