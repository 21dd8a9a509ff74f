"""What the commands that train say when a run ends, is stopped, or has ended before."""

import json
from pathlib import Path

import pytest

from palmette.commands.training.training_result import (
    result_lines,
    result_of,
    stopped,
    tell_finished,
)
from palmette.config import load_config
from palmette.event_log import EventLog
from palmette.events import RunStarted, UpdateDone
from palmette.run.training_folder import finished_checkpoint
from palmette.train.checkpoints.manifest import write_manifest

pytestmark = pytest.mark.unit


def checkpoint(folder: Path, update: int, run: str = "own") -> Path:
    """Write a checkpoint that holds nothing but its manifest and an empty state."""
    path = folder / "checkpoints" / f"update-{update:08d}"
    path.mkdir(parents=True)
    (path / "training.safetensors").write_bytes(b"state")
    write_manifest(path, update=update, metric=None, run=run)
    return path


def begun(folder: Path) -> Path:
    with EventLog(folder) as log:
        log.write(RunStarted("1.0", {}, "own"))
    return folder


def test_a_run_of_all_weights_ends_with_a_policy_and_one_of_lora_with_base_and_adapter() -> None:
    full, lora = (load_config(None, {"policy.model": "seedling", "train.method": way}) for way in ("full", "lora"))
    trained = Path("my run/checkpoints/update-00000006")
    assert result_lines(full, trained) == [f"policy  {trained}"]
    assert result_lines(lora, trained) == [
        f"adapter {trained}",
        f"search  palmette search --policy seedling --set policy.adapter='{trained}'",
    ]
    asked = {"task.name": "words", "task.grade": 2, "task.generator": {"plain": True}}
    of_words = load_config(None, {"policy.model": "sapling", "train.method": "lora", **asked})
    assert result_lines(of_words, trained)[1].endswith(
        """ --task words --set task.grade=2 --set 'task.generator={"plain": true}'"""
    )
    assert result_of(full, trained) == {"policy": str(trained)}
    assert result_of(lora, trained) == {"policy": "seedling", "adapter": str(trained)}
    assert result_lines(lora, None) == []


def test_a_run_that_is_stopped_says_what_it_goes_on_from(tmp_path: Path) -> None:
    assert "before anything was recorded: the same command" in str(stopped("train", tmp_path, None))
    begun(tmp_path)
    again = f"palmette train --resume {tmp_path}"
    assert str(stopped("train", tmp_path, 2)) == (
        f"stopped after update 2, before the first checkpoint: {again} starts from the beginning"
    )
    checkpoint(tmp_path, 4)
    checkpoint(tmp_path, 5)
    goes_on = f"; the last checkpoint is update 5: {again} goes on from there"
    assert str(stopped("train", tmp_path, 7)) == f"stopped after update 7{goes_on}"
    assert str(stopped("train", tmp_path, None)) == f"stopped{goes_on}"


def test_a_run_is_finished_with_a_sound_checkpoint_of_its_own_after_the_last_update(tmp_path: Path) -> None:
    begun(tmp_path)
    assert finished_checkpoint(tmp_path, updates=5) is None
    path = checkpoint(tmp_path, 5)
    assert finished_checkpoint(tmp_path, updates=6) is None
    assert finished_checkpoint(tmp_path, updates=5) == path
    (path / "training.safetensors").write_bytes(b"other")
    assert finished_checkpoint(tmp_path, updates=5) is None
    checkpoint(tmp_path, 6, run="another")
    assert finished_checkpoint(tmp_path, updates=6) is None


def test_a_run_on_rows_is_finished_after_its_last_epoch(tmp_path: Path) -> None:
    begun(tmp_path)
    path = checkpoint(tmp_path, 4)
    with EventLog(tmp_path) as log:
        for update in (2, 4):
            log.write(UpdateDone(update, 0, {"epoch": update / 2}, {}, {}, ()))
    assert finished_checkpoint(tmp_path, epochs=2) == path
    assert finished_checkpoint(tmp_path, epochs=3) is None


def test_a_finished_run_tells_its_result_with_its_last_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path)
    path = checkpoint(tmp_path, 4)
    with EventLog(tmp_path) as log:
        log.write(UpdateDone(4, 0, {"reward": 0.5}, {}, {}, ()))
    (tmp_path / "report.html").touch()
    tell_finished(load_config(None, {}), tmp_path, path, "--updates", as_json=True)
    told = capsys.readouterr()
    assert "is already finished: it has made 4 updates. More --updates go on" in told.err
    assert json.loads(told.out) == {
        "run": str(tmp_path), "policy": str(path), "report": str(tmp_path / "report.html"), "reward": 0.5,
    }  # fmt: skip
