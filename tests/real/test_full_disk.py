"""A disk that is really full: training stops in one line, and the last good checkpoint loads."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.errors import RunError
from palmette.event_log import EventLog
from palmette.events import Noticed
from palmette.train.checkpoints.store import CheckpointStore
from palmette.zoo.load import load_policy
from tests.command import palmette

pytestmark = pytest.mark.real

TRAIN = [
    "train", "--updates", "2", "--width", "2", "--set", "task.grade=1", "--set", "task.questions=8",
    "--set", "search.total_tokens=32", "--set", "train.questions=2", "--set", "train.checkpoint_every=1",
    "--set", "train.entropy_weight=0.01", "--set", "train.learning_rate=1e-4",
]  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a disk with room for one checkpoint of the seedling, of 14 MiB, and not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk: needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def leave(disk: Path, size: int) -> None:
    """Fill the disk so that so many bytes are free."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    usage = os.statvfs(disk)
    ballast.write_bytes(bytes(usage.f_bavail * usage.f_frsize - size))


def test_a_run_on_a_full_disk_says_so_and_the_same_command_goes_on_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    done = palmette(*TRAIN, "--out", str(disk / "run"))
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("palmette: ")]
    assert said[0].startswith(f"palmette: the checkpoint after update 2 cannot be written to {disk}/run/checkpoints (")
    assert "No space left on device" in said[0] and "update-00000001. Make room and start the same command" in said[0]
    assert [path.name for path in (disk / "run/checkpoints").iterdir()] == ["update-00000001"]

    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    done = palmette(*TRAIN, "--out", str(disk / "run"))
    assert done.returncode == 0, done.stderr
    assert "goes on after update 1" in done.stderr
    assert palmette(*TRAIN, "--out", str(tmp_path / "alone")).returncode == 0
    for name in ("model.safetensors", "training.safetensors"):
        ours, theirs = (folder / "checkpoints/update-00000002" / name for folder in (disk / "run", tmp_path / "alone"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_wherever_the_disk_is_full_the_checkpoint_before_is_sound(disk: Path) -> None:
    model, tokenizer = load_policy("seedling")
    tensors = {"moment": torch.zeros(3)}

    def write_model(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def save(update: int) -> None:
        store.save(update, write_model=write_model, tensors=tensors, state={"progress": {}})

    store = CheckpointStore(disk / "checkpoints", keep=2)
    save(1)
    files = list((disk / "checkpoints/update-00000001").iterdir())
    pages = sorted(-(-path.stat().st_size // 4096) for path in files)
    # Up to one page less than a checkpoint takes: every one of its files is once the one that does not fit.
    for left in (0, 1, *range(pages[-1] - 1, sum(pages))):
        leave(disk, left * 4096)
        with pytest.raises(RunError, match=r"checkpoint after update 2 cannot be written.*the last good one is .*1\."):
            save(2)
        found = store.newest()
        assert found.checkpoint is not None and (found.checkpoint.update, found.damaged) == (1, [])
        assert [path.name for path in (disk / "checkpoints").iterdir()] == ["update-00000001"]
    (disk / "ballast").unlink()
    save(2)
    assert store.read(2).update == 2


def test_an_event_that_does_not_fit_is_told_with_the_command_that_goes_on(disk: Path) -> None:
    event: Any = Noticed(1, "signal", "x" * 10_000)
    with EventLog(disk) as log:
        log.write(event)
        leave(disk, 0)
        with pytest.raises(RunError, match=r"No space left on device.*free disk space and go on with --resume"):
            log.write(event)
        (disk / "ballast").unlink()
        log.write(event)
    assert len((disk / "events.jsonl").read_text().splitlines()) == 2
