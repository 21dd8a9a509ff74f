"""Models that are shipped as an adapter: merged with their base into the cache when first used. Imports no torch."""

import importlib
from pathlib import Path

from palmette.errors import BackendError
from palmette.zoo.cache import ensure, print_status
from palmette.zoo.catalog import Entry
from palmette.zoo.folder import sha256

# Part of the cache key: change it when the same adapter must be merged differently.
_RECIPE = "bfloat16-1"
_SPARE_BYTES = 16 * 2**20


def grafted_folder(entry: Entry, base: Path) -> Path:
    """Return the model's folder in the cache; merge its adapter into the base, a folder, first if it is not there.

    Raises BackendError where the adapter is missing or not the known one, ConfigError where the cache cannot hold it.
    """

    def build(folder: Path) -> None:
        adapter = entry.weights_path()
        if adapter is None:
            raise entry.missing()
        if sha256(adapter) != entry.sha256:
            raise BackendError(f"{adapter} is damaged: its SHA-256 is not the expected one. Reinstall palmette")
        print_status(f"merging {entry.name} with {entry.base}, once (some seconds)")
        # By name: import-linter also counts imports inside functions, and resolving names must not import torch.
        importlib.import_module("palmette.zoo.graft").graft(adapter.parent, base, folder)

    needed_bytes = 2 * (entry.parameters or 0) + _SPARE_BYTES
    return ensure(entry.name, f"{_RECIPE}:{entry.sha256}", build, needed_bytes=needed_bytes)
