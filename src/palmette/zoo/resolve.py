"""A model's name turned into the local folder that holds it, fetched from a hub where it has to be."""

import os
import re
from pathlib import Path

from palmette.errors import BackendError, ConfigError
from palmette.units import nearest, one_line
from palmette.zoo.catalog import ENTRIES, Entry
from palmette.zoo.converted import converted_folder

# What a transformers folder needs. Weights saved as pickles and modeling code are not even downloaded.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def fetch(hub_id: str) -> str:
    """Return a local folder holding the model; raise BackendError when the hub has it not or cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return str(snapshot_download(hub_id, allow_patterns=_WANTED))
    except GatedRepoError as error:
        raise BackendError(f"the hub wants you to accept a form for {hub_id}; do, or give a local folder") from error
    except RepositoryNotFoundError as error:
        raise BackendError(f"the hub has no model {hub_id}: check the name, or give a local folder") from error
    except LocalEntryNotFoundError as error:
        raise BackendError(f"cannot reach hub for {hub_id}; give a local folder") from error
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise BackendError(f"cannot fetch {hub_id} from the hub: {told}") from error


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def resolve(name: str) -> str:
    """Return the local folder of a model, or a hub id unchanged.

    A zoo name wins over a folder of the same name (write './seedling' for the folder). `org/name` is a hub id unless
    that folder or a folder `org` exists here. The first use of a GGUF model converts it, which takes half a minute.
    Raise ConfigError when there is no such model, BackendError when its package is missing.
    """
    if name in ENTRIES:
        return str(_zoo_folder(ENTRIES[name]))
    path = Path(os.path.expanduser(name))
    if name.strip() and os.path.isdir(path):
        _check_model_folder(path)
        return str(path)
    if os.path.isfile(path):
        raise ConfigError(f"model '{name}' is a file: name the folder that holds it, '{path.parent}'")
    if _HUB_ID.fullmatch(name) and not os.path.isdir(path.parent):
        return name
    raise _unknown(name, path)


def is_hub_id(resolved: str) -> bool:
    """Tell whether what `resolve` returned still has to be fetched."""
    return not os.path.isdir(resolved)


def _zoo_folder(entry: Entry) -> Path:
    if entry.weights.endswith(".gguf"):
        return converted_folder(entry)
    weights = entry.weights_path()
    if weights is None:
        raise entry.missing()
    return weights.parent


def _check_model_folder(folder: Path) -> None:
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(f"{folder} is a PEFT adapter, not a model: give it as the adapter of its base model")
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise ConfigError(f"{folder} is no model folder: it has no config.json")


def _unknown(name: str, path: Path) -> ConfigError:
    if os.sep in name:
        what = f"there is no model folder at {path.absolute()}"
    else:
        what = f"model '{name}' is unknown: neither a zoo name nor a folder here"
    near = nearest(path.name.lower(), ENTRIES)
    if near:
        return ConfigError(f"{what}. Did you mean '{near}'?")
    return ConfigError(f"{what}. Known names: {', '.join(ENTRIES)}; anything else must be a folder with a config.json")
