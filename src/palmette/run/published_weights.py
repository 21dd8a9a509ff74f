"""The weights of a policy in training as its servers get them: written to a folder, loaded by their own routes."""

import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.dialect import Weights
from palmette.errors import RunError


class PublishedWeights:
    """Gives servers each version of the weights that `save` writes, and takes the one before it away.

    Versions are folders below `folder`, which has to be the same for this process and the servers. Their names begin
    with that of the run: what an earlier process of the run has left on servers or disk is taken away first.
    """

    def __init__(
        self, backend: ServedBackend, save: Callable[[Path], None], folder: Path, run: str, *, is_adapter: bool
    ) -> None:
        self._backend = backend
        self._save = save
        self._folder = folder
        self._beginning = f"palmette-{run[:8]}-"
        self._session = secrets.token_hex(3)
        self._is_adapter = is_adapter
        self._present: Weights | None = None
        self.version: int | None = None
        """The number of the update whose weights the servers have."""
        self._told_stale = backend.stale_steps
        shutil.rmtree(folder, ignore_errors=True)
        backend.drop_weights(self._beginning)

    def publish(self, update: int) -> None:
        """Have all servers write with the weights after so many updates; written anew only for another number.

        Servers that lost the weights get them again. Raises BackendError where no server takes them, RunError where
        they cannot be written.
        """
        if self.version != update or self._present is None:
            name = f"{self._beginning}{self._session}-{update}"
            before, self._present = self._present, Weights(name, str(self._write(name)), self._is_adapter)
            self.version = update
        else:
            before = None
        self._backend.use_weights(self._present)
        if before is not None:
            shutil.rmtree(before.folder, ignore_errors=True)

    def numbers(self) -> dict[str, float]:
        """Return the version, and how many steps since the last call servers wrote with other weights."""
        told, self._told_stale = self._told_stale, self._backend.stale_steps
        return {"served_version": float(self.version or 0), "stale_steps": float(self._told_stale - told)}

    def older_than(self, update: int) -> set[str]:
        """Return the questions since the last call with a step by weights of fewer updates than so many.

        Weights are known by their names. Steps of weights whose names are not of this run are in `stale_steps` alone.
        """
        named = re.compile(rf"{re.escape(self._beginning)}[0-9a-f]+-(\d+)")
        return {
            question
            for question, names in self._backend.take_stale().items()
            for found in map(named.fullmatch, names)
            if found is not None and int(found[1]) < update
        }

    def close(self) -> None:
        """Take the weights off the servers and the disk, and end the connections."""
        try:
            self._backend.drop_weights(self._beginning)
        finally:
            self._backend.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str) -> Path:
        half, whole = self._folder / f"{name}.half", self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._save(half)
            half.rename(whole)
        except OSError as error:
            raise RunError(f"cannot write the weights for the servers to {self._folder}: {error}") from error
        return whole
