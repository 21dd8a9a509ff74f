"""The checkpoints of one run: written aside and renamed when whole; the newest sound one is found again."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import PalmetteError, RunError
from palmette.train.checkpoints.manifest import read_manifest, sync_folder, write_manifest
from palmette.units import describe_error, format_bytes, one_line

if TYPE_CHECKING:
    import torch

TRAINING_FILE = "training.safetensors"
"""Optimizer state as tensors; in its header, as JSON, the state of everything else."""

_NAME = re.compile(r"update-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint: after so many updates, with what the run has to remember beside its weights."""

    folder: Path
    update: int
    state: dict[str, Any]
    metric: float | None

    def tensors(self) -> "dict[str, torch.Tensor]":
        """Return the optimizer's tensors."""
        from safetensors.torch import load_file

        from palmette.train.checkpoints.shard_files import FOLDER, read_whole

        shards = self.folder / FOLDER
        return read_whole(shards) if shards.is_dir() else load_file(self.folder / TRAINING_FILE)


@dataclass
class Found:
    """The newest sound checkpoint, None if there is none, and what is wrong with those that are newer."""

    checkpoint: Checkpoint | None
    damaged: list[str] = field(default_factory=list)


class CheckpointStore:
    """Keeps the last `keep` checkpoints of a run, and the one with the highest metric.

    With `run`, which tells a run from every other one, checkpoints of other runs are not read.
    """

    def __init__(self, folder: Path, *, keep: int, run: str = "") -> None:
        self._folder = folder
        self._keep = keep
        self._run = run
        self._damaged: set[int] = set()  # Found damaged and not yet written again: not counted as kept.

    def newest(self) -> Found:
        """Return the newest checkpoint whose files are all as written. What a killed process left half is removed."""
        damaged: list[str] = []
        for left in self._folder.glob(".update-*"):
            _remove(left)
        for update in reversed(self.updates()):
            try:
                return Found(self.read(update), damaged)
            except RunError as error:
                damaged.append(str(error))
                self._damaged.add(update)
        return Found(None, damaged)

    def read(self, update: int) -> Checkpoint:
        """Return the checkpoint after so many updates. Raises RunError if it is damaged, or not that of this run."""
        folder = self.path(update)
        manifest = read_manifest(folder, needs=TRAINING_FILE)
        if manifest.get("update") != update:
            raise RunError(f"{folder}: was written after update {one_line(str(manifest.get('update')), 80)}")
        if self._run and manifest.get("run") != self._run:
            raise RunError(f"{folder}: was written by another run")
        return Checkpoint(folder, update, _state(folder / TRAINING_FILE), manifest.get("metric"))

    def updates(self) -> list[int]:
        """Return the updates after which there is a checkpoint, sound or not, in order."""
        names = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        return sorted(int(match.group(1)) for name in names if (match := _NAME.fullmatch(name)))

    def last(self) -> Path | None:
        """Return the folder of the last checkpoint that was not found damaged."""
        sound = self._sound()
        return self.path(sound[-1]) if sound else None

    def _sound(self) -> list[int]:
        return [update for update in self.updates() if update not in self._damaged]

    def save(
        self,
        update: int,
        *,
        write_model: Callable[[Path], object],
        tensors: "Mapping[str, torch.Tensor]",
        state: Mapping[str, Any],
        metric: float | None = None,
    ) -> Path:
        """Write a checkpoint, then remove those that need not be kept; return its folder.

        Raises RunError where it cannot be written, with the checkpoints before it as they were.
        """
        from safetensors.torch import save_file

        final, aside = self.path(update), self._folder / f".update-{update:08d}"
        try:
            _remove(aside)
            aside.mkdir(parents=True)
            write_model(aside)
            save_file(dict(tensors), aside / TRAINING_FILE, {"state": json.dumps(state)})
            write_manifest(aside, update=update, metric=metric, run=self._run)
            _remove(final)
            os.rename(aside, final)
            sync_folder(self._folder)
        except PalmetteError:
            _remove(aside)
            raise
        # On a full disk Python raises OSError, safetensors a SafetensorError, tokenizers a plain Exception.
        except Exception as error:
            _remove(aside)
            raise RunError(self._told(update, error)) from error
        self._damaged.discard(update)
        self._remove_old(update)
        return final

    def _remove_old(self, saved: int) -> None:
        """Remove what is older than the checkpoint just saved and not to be kept, damaged ones among it."""
        sound = self._sound()
        metrics = {update: metric for update in sound if (metric := self._metric(update)) is not None}
        best = max(metrics, key=lambda update: (metrics[update], -update), default=None)
        for update in self.updates():
            if update < saved and update != best and update not in sound[-self._keep :]:
                _remove(self.path(update))

    def _metric(self, update: int) -> float | None:
        try:
            metric = json.loads((self.path(update) / "manifest.json").read_text(encoding="utf-8"))["metric"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return metric if isinstance(metric, float) else None

    def path(self, update: int) -> Path:
        """Return the folder of the checkpoint after so many updates, whether it is there or not."""
        return self._folder / f"update-{update:08d}"

    def _told(self, update: int, error: Exception) -> str:
        kept = self.last()
        last = f"the last good one is {kept}" if kept else "there is none before it"
        free = format_bytes(shutil.disk_usage(self._folder.parent if not self._folder.exists() else self._folder).free)
        return (
            f"the checkpoint after update {update} cannot be written to {self._folder} ({free} free): "
            f"{describe_error(error)}; {last}. Make room and start the same command again"
        )


def _remove(path: Path) -> None:
    """Remove a folder with all it holds, a file, or a link and not what it leads to. What cannot be removed stays."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _state(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {})["state"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: damaged: {describe_error(error)}") from error
    return state  # type: ignore[no-any-return]
