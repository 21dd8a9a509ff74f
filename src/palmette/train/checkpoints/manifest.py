"""The manifest of a checkpoint: the size and the hash of every file, by which a damaged one is found."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from palmette.errors import RunError
from palmette.units import describe_error

FILE_NAME = "manifest.json"
FORMAT = 1


def write_manifest(folder: Path, **facts: Any) -> None:
    """Write all files of a folder to disk, then a manifest of them with these facts."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": _digest(file)}
                os.fsync(file.fileno())
    manifest = folder / FILE_NAME
    with manifest.open("w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **facts, "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


_READ = (".safetensors", ".json")
"""What files end with that are read when a checkpoint is loaded: none of them may be missing in the manifest."""


def read_manifest(folder: Path, *, needs: str) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose files are all as they were written, the file `needs` among them.

    Raises RunError, with what is wrong, for a damaged checkpoint and for one of a newer format.
    """
    path = folder / FILE_NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = manifest["files"]
        if manifest["format"] != FORMAT:
            raise RunError(f"{folder}: written in format {manifest['format']}, this version reads format {FORMAT}")
        there = [str(part.relative_to(folder)) for part in folder.rglob("*") if part.suffix in _READ and part != path]
        for name in (needs, *there):
            if name not in files:
                raise RunError(f"{folder}: damaged: {FILE_NAME} does not list {name}")
        for name, expected in files.items():
            part = folder / name
            if part.stat().st_size != expected["bytes"]:
                raise RunError(f"{part}: has {part.stat().st_size} bytes, {expected['bytes']} were written")
            with part.open("rb") as file:
                if _digest(file) != expected["sha256"]:
                    raise RunError(f"{part}: its content is not what was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{folder}: damaged: {describe_error(error)}") from error
    return manifest  # type: ignore[no-any-return]


def sync_folder(folder: Path) -> None:
    """Write a folder's own entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: Any) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
