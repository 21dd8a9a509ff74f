"""A model's name turned into the local folder that holds it, downloaded from the hub if need be. Imports no torch."""

import os
from pathlib import Path
from shlex import quote

from palmette.errors import BackendError, ConfigError
from palmette.units import describe_error
from palmette.zoo.cache import cache_root
from palmette.zoo.catalog import ENTRIES, Entry, Role
from palmette.zoo.converted import converted_folder
from palmette.zoo.folder import read_json
from palmette.zoo.grafted import grafted_folder
from palmette.zoo.names import is_plausible_hub_id, likely_meant

# The files that transformers needs. Pickled weights and modeling code are not even downloaded.
_WANTED_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def check_model_name(name: str, role: Role, *, by_likelihood: bool = False) -> None:
    """Return when a name can stand for a model in this role: a zoo name, a model folder, or a hub id.

    Nothing is downloaded and nothing is read but the names of files. With `by_likelihood` a policy of the zoo may be
    the reward model too. Raises ConfigError where there is no such model.
    """
    entry = ENTRIES.get(name)
    if entry is None:
        _folder_or_hub_id(name)
        return
    if entry.role == role or (by_likelihood and (role, entry.role) == ("reward", "policy")):
        return
    fitting = [other.name for other in ENTRIES.values() if other.role == role]
    scores = ", or let it score with --set reward.score=likelihood"
    hint = scores if (role, entry.role) == ("reward", "policy") else ""
    raise ConfigError(f"{name} cannot serve as {role}: its role is {entry.role}. Try {' or '.join(fitting)}{hint}")


def resolve(name: str) -> str:
    """Return the local folder of a model, or a hub id unchanged.

    A zoo name wins over a folder of the same name; write './seedling' for the folder. Any other name is a folder if
    there is one, otherwise a hub id, unless it looks like a misspelled zoo name or a path. The first use of a GGUF
    model converts it, which takes half a minute. Raises ConfigError where there is no such model, BackendError where
    its package is missing.
    """
    return str(_zoo_folder(ENTRIES[name])) if name in ENTRIES else _folder_or_hub_id(name)


def is_hub_id(resolved: str) -> bool:
    """Return whether what `resolve` returned still has to be downloaded."""
    return not os.path.isdir(resolved)


def fetch(hub_id: str, *, weights: bool = True) -> str:
    """Download a model from the hub unless it is in the hub's cache; return its local folder.

    Without `weights` only its config and tokenizer are downloaded. Raises BackendError where the hub does not have it,
    does not give it, or cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    ignored = None if weights else ["*.safetensors"]
    try:
        return str(snapshot_download(hub_id, allow_patterns=_WANTED_FILES, ignore_patterns=ignored))
    except GatedRepoError as error:
        raise BackendError(
            f"the hub gives {hub_id} only to those who accepted its terms: accept them there, or give a local folder"
        ) from error
    except RepositoryNotFoundError as error:
        raise BackendError(f"the hub has no model {hub_id}: check the name, or give a local folder") from error
    except LocalEntryNotFoundError as error:
        raise BackendError(
            f"cannot reach the hub to download {hub_id}, which is no zoo name and no folder here: "
            f"give a local folder, or a model that `palmette models` lists"
        ) from error
    except Exception as error:
        raise BackendError(f"cannot download {hub_id} from the hub: {describe_error(error)}") from error


def _folder_or_hub_id(name: str) -> str:
    """Return the model folder that a name gives, or the name itself where it can be a hub id.

    `org/name` is taken for a missing folder where a folder `org` exists here. Raises ConfigError for anything else.
    """
    path = Path(os.path.expanduser(name))
    if name.strip() and os.path.isdir(path):
        _check_model_folder(path)
        return str(path)
    if os.path.isfile(path):
        raise ConfigError(f"model '{name}' is a file: name the folder that holds it, '{path.parent}'")
    is_path, meant = os.sep in name, likely_meant(path.name, ENTRIES)
    if is_plausible_hub_id(name) and (not os.path.isdir(path.parent) if is_path else meant is None):
        return name
    problem = f"there is no model folder at {path.absolute()}" if is_path else f"there is no model '{name}'"
    if meant is not None:
        raise ConfigError(f"{problem}. Did you mean '{meant}'?")
    raise ConfigError(
        f"{problem}. Give a folder with a config.json, a hub id such as 'org/name', or one of {', '.join(ENTRIES)}"
    )


def _zoo_folder(entry: Entry) -> Path:
    if entry.weights.endswith(".gguf"):
        return converted_folder(entry)
    if entry.base is not None:
        return grafted_folder(entry, _zoo_folder(ENTRIES[entry.base]))
    weights = entry.weights_path()
    if weights is None:
        raise entry.missing()
    return weights.parent


def _check_model_folder(folder: Path) -> None:
    """Raise ConfigError for a folder that holds no model, with what to write in its place if that can be told."""
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{folder} is a PEFT adapter, not a model: give its base model and the adapter, "
            f"--policy {quote(_base_of(folder))} --set policy.adapter={quote(str(folder))}"
        )
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        checkpoints = sorted(folder.glob("checkpoints/update-*"))
        hint = f". It is the folder of a training run: its last checkpoint is {checkpoints[-1]}" if checkpoints else ""
        raise ConfigError(f"{folder} is no model folder: it has no config.json{hint}")


def _base_of(adapter: Path) -> str:
    """Return the base model that an adapter records, by its name in the zoo if it is there; BASE for none."""
    recorded = read_json(adapter / "adapter_config.json").get("base_model_name_or_path")
    if not isinstance(recorded, str) or not recorded:
        return "BASE"
    path = Path(recorded)
    return path.name if path.name in ENTRIES and path.parent in (Path(__file__).parent, cache_root()) else recorded
