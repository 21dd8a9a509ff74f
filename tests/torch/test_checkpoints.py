"""Checkpoints are whole or absent: half-written ones are removed, damaged ones found, the best one kept."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.errors import RunError
from palmette.train.checkpoints.store import TRAINING_FILE, CheckpointStore

pytestmark = pytest.mark.torch


def save(store: CheckpointStore, update: int, metric: float | None = None) -> Path:
    def write_model(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"update": update}))

    tensors = {"moment": torch.full((3,), float(update))}
    return store.save(update, write_model=write_model, tensors=tensors, state={"update": update}, metric=metric)


def test_what_is_saved_is_found_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "kept", keep=2)
    assert store.newest().checkpoint is None
    save(store, 10)
    found = store.newest().checkpoint
    assert found is not None
    assert (found.update, found.state) == (10, {"update": 10})
    assert found.tensors()["moment"].tolist() == [10.0, 10.0, 10.0]


def test_the_last_ones_and_the_best_one_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for update, metric in ((10, 0.1), (20, 0.9), (30, 0.5), (40, None), (50, 0.9)):
        save(store, update, metric)
    assert store.updates() == [20, 40, 50]


@pytest.mark.parametrize("name", ["config.json", TRAINING_FILE, "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path: Path, name: str, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 1)
    victim = save(store, 2) / name
    data = bytearray(victim.read_bytes())
    if damage == "gone":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 1
        victim.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    found = store.newest()
    assert found.checkpoint is not None
    assert found.checkpoint.update == 1
    assert len(found.damaged) == 1
    assert "update-00000002" in found.damaged[0]


def test_a_damaged_checkpoint_is_not_counted_as_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for update, metric in ((10, 0.1), (20, None), (30, 0.9)):
        save(store, update, metric)
    assert store.updates() == [20, 30]
    store = CheckpointStore(tmp_path, keep=2)
    (tmp_path / "update-00000030" / "config.json").write_text("damaged")
    found = store.newest().checkpoint
    assert found is not None
    assert (found.update, store.last()) == (20, tmp_path / "update-00000020")
    # 30 has the best metric, and is damaged: it goes with the first checkpoint after it.
    save(store, 25)
    assert store.updates() == [20, 25, 30]
    save(store, 35)
    assert store.updates() == [25, 35]
    assert store.last() == tmp_path / "update-00000035"


def test_a_damaged_checkpoint_that_is_written_again_is_sound(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    (save(store, 2) / "config.json").write_text("damaged")
    assert store.newest().damaged != []
    save(store, 2, 0.5)
    assert (store.newest().damaged, store.last()) == ([], tmp_path / "update-00000002")
    save(store, 3)
    save(store, 4)
    assert store.updates() == [2, 3, 4]


def test_what_a_killed_process_left_half_is_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    (tmp_path / ".update-00000002").mkdir()
    (tmp_path / ".update-00000002" / "model.safetensors").write_bytes(b"half")
    found = store.newest().checkpoint
    assert found is not None
    assert found.update == 1
    assert sorted(os.listdir(tmp_path)) == ["update-00000001"]


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)

    def full(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match=r"No space left.*the last good one is .*update-00000001"):
        store.save(2, write_model=full, tensors={}, state={})
    found: Any = store.newest().checkpoint
    assert found.update == 1
    assert sorted(os.listdir(tmp_path)) == ["update-00000001"]


def test_a_checkpoint_of_another_run_or_another_update_is_not_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "mine", keep=4, run="a")
    save(store, 1)
    shutil.copytree(save(store, 2), store.path(4))
    shutil.copytree(save(CheckpointStore(tmp_path / "other", keep=4, run="b"), 3), store.path(3))
    found = store.newest()
    assert found.checkpoint is not None
    assert found.checkpoint.update == 2
    assert found.damaged == [
        f"{store.path(4)}: was written after update 2", f"{store.path(3)}: was written by another run",
    ]  # fmt: skip


def test_checkpoints_of_a_run_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, keep=2), 1)
    assert CheckpointStore(tmp_path, keep=2).newest().checkpoint is not None


@pytest.mark.parametrize("listed", [{}, {"config.json"}, {TRAINING_FILE}])
def test_a_manifest_has_to_list_every_file_that_is_read(tmp_path: Path, listed: set[str]) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    manifest = save(store, 1) / "manifest.json"
    values = json.loads(manifest.read_text())
    files = {name: entry for name, entry in values["files"].items() if name in listed}
    manifest.write_text(json.dumps({**values, "files": files}))
    found = store.newest()
    assert found.checkpoint is None
    assert "damaged: manifest.json does not list" in found.damaged[0]


def test_a_checkpoint_of_a_newer_format_is_not_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    manifest = save(store, 1) / "manifest.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "format": 2}))
    assert store.newest().damaged == [f"{manifest.parent}: written in format 2, this version reads format 1"]


@pytest.mark.parametrize("kind", ["dangling link", "link", "file", "half-written link"])
def test_what_is_no_folder_in_the_place_of_a_checkpoint_is_told_and_replaced(tmp_path: Path, kind: str) -> None:
    store = CheckpointStore(tmp_path / "kept", keep=2)
    save(store, 1)
    place = tmp_path / "kept" / (".update-00000002" if kind == "half-written link" else "update-00000002")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").write_text("not to be removed")
    if kind == "file":
        place.write_text("")
    else:
        place.symlink_to(tmp_path / ("gone" if kind == "dangling link" else "elsewhere"))
    found = store.newest()
    assert found.checkpoint is not None
    assert found.checkpoint.update == 1
    save(store, 2)
    save(store, 3)
    assert sorted(os.listdir(tmp_path / "kept")) == ["update-00000002", "update-00000003"]
    assert (tmp_path / "elsewhere" / "mine.txt").exists()


def test_a_folder_of_checkpoints_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "kept").symlink_to(tmp_path / "gone")
    store = CheckpointStore(tmp_path / "kept", keep=2)
    assert store.newest().checkpoint is None
    with pytest.raises(RunError, match="the checkpoint after update 1 cannot be written to .*kept"):
        save(store, 1)
