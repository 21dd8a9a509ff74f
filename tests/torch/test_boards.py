"""What TensorBoard reads of a training run that was stopped and went on."""

from pathlib import Path

import pytest

from palmette.errors import ConfigError
from palmette.events import Evaluated, Noticed, UpdateDone
from palmette.run.boards import boards


def update(number: int, reward: float) -> UpdateDone:
    return UpdateDone(number, number, {"reward": reward}, {"rollout": 2.0}, {"rollout": 10})


def read(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return [(point.step, round(point.value, 6)) for point in accumulator.Scalars(name)]


def test_a_run_that_goes_on_replaces_what_was_told_after_its_checkpoint(tmp_path: Path) -> None:
    with boards(["tensorboard"], tmp_path, {}, 1) as tell:
        tell(Evaluated(0, 5, 0.25, 0.5, 0.1, 100, 1.0))
        for number in (1, 2, 3):
            tell(update(number, 0.1 * number))
        tell(Noticed(3, "cut", "not a number"))
    with boards(["tensorboard"], tmp_path, {}, 3) as tell:
        for number in (3, 4):
            tell(update(number, 0.5))
        tell(Evaluated(4, 5, 0.75, 0.5, 0.1, 100, 1.0))
    assert read(tmp_path, "train/reward") == [(1, 0.1), (2, 0.2), (3, 0.5), (4, 0.5)]
    assert read(tmp_path, "test/single") == [(0, 0.25), (4, 0.75)]
    assert read(tmp_path, "seconds/rollout") == [(number, 2.0) for number in (1, 2, 3, 4)]


def test_a_board_that_cannot_start_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file where a folder belongs")
    with pytest.raises(ConfigError, match="train.log_to: tensorboard cannot start"):
        boards(["tensorboard"], tmp_path, {}, 1).__enter__()


def test_without_a_board_nothing_is_written(tmp_path: Path) -> None:
    with boards([], tmp_path, {}, 1) as tell:
        tell(update(1, 0.5))
    assert list(tmp_path.iterdir()) == []
