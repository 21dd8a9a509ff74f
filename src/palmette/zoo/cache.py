"""A cache of model folders that are whole or absent.

A folder is built under another name and then renamed, under a file lock that ends with its process. A manifest, written
last, holds every file's size and CRC. Both are checked on each use: 540 MB take 0.15 s, where SHA-256 takes 0.35 s on a
CPU with SHA instructions or 1.3 s on one without. A CRC finds damage, not tampering: whoever tampers with a file could
edit the manifest, too.
"""

import errno
import fcntl
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from palmette.errors import ConfigError
from palmette.units import format_bytes

MANIFEST = "manifest.json"
_CHUNK_BYTES = 4 * 2**20
Say = Callable[[str], None]


def cache_root() -> Path:
    """Return `$PALMETTE_CACHE`, or `palmette` under `$XDG_CACHE_HOME` or `~/.cache`. It need not exist."""
    chosen = os.environ.get("PALMETTE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG specification a relative path is ignored.
    return (Path(shared) if os.path.isabs(shared) else Path("~/.cache").expanduser()) / "palmette"


def print_status(line: str) -> None:
    """Print one line to stderr, apart from what a command prints as its result."""
    print(line, file=sys.stderr, flush=True)


def ensure(
    name: str, key: str, build: Callable[[Path], None], *, needed_bytes: int = 0, say: Say = print_status
) -> Path:
    """Return the cache's folder `name`, whole and built for `key`; if it is not, call `build` with an empty folder.

    Of several processes one builds while the others wait. A build that raises or is killed leaves no folder `name`.
    Raises ConfigError where the cache cannot hold the folder.
    """
    root = cache_root()
    folder = root / name
    waiting = f"waiting for another process to finish with {folder}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f"{name}.lock", exclusive=False, waiting=waiting, say=say):
            if find_fault(folder, key) is None:
                return folder
        with _lock(root / f"{name}.lock", exclusive=True, waiting=waiting, say=say):
            fault = find_fault(folder, key)  # Another process may have built it while this one waited.
            if fault is not None:
                if folder.exists():
                    say(f"{folder} cannot be used: {fault}; building it again")
                _replace(folder, key, build, needed_bytes)
        return folder
    except OSError as error:
        raise ConfigError(
            f"cannot keep {name} in the cache at {root}: {error.strerror or error}. "
            f"Set PALMETTE_CACHE to a writable folder with enough space, such as PALMETTE_CACHE=/tmp/palmette"
        ) from error


def find_fault(folder: Path, key: str) -> str | None:
    """Return what is wrong with a cached folder, None where every byte is as it was built for `key`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        built_for, files = manifest["key"], dict(manifest["files"])
        expected = {name: (int(entry["bytes"]), int(entry["crc32"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {MANIFEST} is missing or damaged"
    if built_for != key:
        return "it was built from other weights or by another version of palmette"
    for name, (size_bytes, crc) in expected.items():
        try:
            found_bytes = (folder / name).stat().st_size
            if found_bytes != size_bytes:
                return f"{name} has {found_bytes:,} bytes instead of {size_bytes:,}"
            if _crc32(folder / name) != crc:
                return f"the bytes of {name} have changed"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _replace(folder: Path, key: str, build: Callable[[Path], None], needed_bytes: int) -> None:
    """Build under another name, then rename. Called under the exclusive lock: leftovers are of builds that ended."""
    for leftover in folder.parent.glob(f".{folder.name}~*"):
        shutil.rmtree(leftover)
    free_bytes = shutil.disk_usage(folder.parent).free
    if free_bytes < needed_bytes:
        raise OSError(errno.ENOSPC, f"it needs {format_bytes(needed_bytes)}, {format_bytes(free_bytes)} are free")
    built = folder.parent / f".{folder.name}~new"
    replaced = folder.parent / f".{folder.name}~old"
    built.mkdir()
    try:
        build(built)
        _write_manifest(built, key)
        if folder.exists():
            folder.rename(replaced)
        built.rename(folder)
    finally:
        shutil.rmtree(built, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def _write_manifest(folder: Path, key: str) -> None:
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "crc32": _crc32(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"key": key, "files": files}, indent=1) + "\n", encoding="utf-8")
    for name in files:
        # safetensors writes files as 0600 whatever the umask; a cache shared by a group must be readable for it.
        (folder / name).chmod(manifest.stat().st_mode)


def _crc32(path: Path) -> int:
    crc = 0
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(memoryview(buffer)[:count], crc)
    return crc


@contextmanager
def _lock(path: Path, *, exclusive: bool, waiting: str, say: Say) -> Iterator[None]:
    """Hold a file lock; say `waiting` if another process has it. Readers of a read-only cache do without the lock."""
    try:
        # NFS grants an exclusive lock only on a file opened for writing, which a reader may not be permitted to do.
        descriptor = os.open(path, os.O_CREAT | (os.O_RDWR if exclusive else os.O_RDONLY), 0o666)
    except OSError:
        if exclusive:
            raise
        yield
        return
    try:
        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(descriptor, mode)
        yield
    finally:
        os.close(descriptor)
