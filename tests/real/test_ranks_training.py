"""A training run with ranks: a rank that is lost costs time and nothing else, and any number of them goes on."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.events import Noticed, UpdateDone
from palmette.run.row_checks import check_rows_config
from palmette.run.train import TrainingRun
from palmette.run.training_checks import check_training
from palmette.scale.learning.ranks_learner import RanksLearner
from palmette.settings import Config

SMALL: dict[str, Any] = {
    "policy.model": "seedling",
    "task.name": "ladder",
    "task.grade": 2,
    "task.questions": 20,
    "search.width": 4,
    "search.total_tokens": 80,
    "train.updates": 3,
    "train.questions": 3,
    "train.learning_rate": 1e-4,
    "train.checkpoint_every": 1,
    "train.keep_checkpoints": 3,
    "train.sharing": "off",  # As ranks compute: else rounding differs more, and Adam makes a step of the rounding of 0.
}


def config_of(ranks: int | None, **changed: Any) -> Config:
    told = {key.replace("__", "."): value for key, value in changed.items()}
    return load_config(None, {**SMALL, "scale.ranks": ranks, **told})


def trained(config: Config, folder: Path, *, stop_after: int | None = None, kill_after: int | None = None) -> list[Any]:
    """Train; stop where an update is done and its checkpoint is not written yet, or kill a rank there."""
    folder.mkdir(exist_ok=True)
    seen: list[Any] = []
    with TrainingRun(config, folder) as run:
        learner = run.policy.learner
        for event in run.updates():
            seen.append(event)
            if isinstance(event, UpdateDone) and event.update == stop_after:
                break
            if isinstance(event, UpdateDone) and event.update == kill_after:
                kill_after = None
                assert isinstance(learner, RanksLearner)
                os.kill(learner.places[-1]["pid"], signal.SIGKILL)
    return seen


def weights_of(folder: Path, update: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"update-{update:08d}" / "model.safetensors")


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in other)


def test_a_rank_that_is_killed_changes_no_weight(tmp_path: Path) -> None:
    whole = trained(config_of(2), tmp_path / "whole")
    assert [event.update for event in whole if isinstance(event, UpdateDone)] == [1, 2, 3]
    killed = trained(config_of(2), tmp_path / "killed", kill_after=2)
    # The second update was done and not yet written: it is made again, with new ranks.
    assert [event.update for event in killed if isinstance(event, UpdateDone)] == [1, 2, 2, 3]
    (notice,) = [event for event in killed if isinstance(event, Noticed)]
    assert "rank 1 of 2" in notice.text and "from the checkpoint after update 1" in notice.text
    last = weights_of(tmp_path / "whole", 3)
    assert all(torch.equal(tensor, last[name]) for name, tensor in weights_of(tmp_path / "killed", 3).items())
    # In one process: the same but for rounding.
    trained(config_of(None), tmp_path / "plain")
    assert furthest(weights_of(tmp_path / "plain", 3), last) < 1e-5
    # After two updates another number of ranks goes on, or one process; and ranks where one process was.
    for begun, ranks in (("whole", None), ("whole", 1), ("plain", 2)):
        folder = tmp_path / f"{begun}-{ranks}"
        shutil.copytree(tmp_path / begun, folder)
        shutil.rmtree(folder / "checkpoints" / "update-00000003")
        assert [event.update for event in trained(config_of(ranks), folder)] == [3]
        assert furthest(weights_of(folder, 3), last) < 1e-5, (begun, ranks)


def test_rollouts_ahead_of_updates_are_as_old_as_they_are_said_to_be_and_repeat(tmp_path: Path) -> None:
    larger = {"task__grade": 3, "search__width": 6, "search__total_tokens": 120, "train__learning_rate": 1e-3}
    config = config_of(1, scale__staleness=1, **larger)
    seen = [event for event in trained(config, tmp_path / "one") if isinstance(event, UpdateDone)]
    assert [event.numbers["weights_age"] for event in seen] == [0, 1, 1]
    assert seen[0].numbers["server_ratio_high"] == pytest.approx(1, abs=1e-4)
    assert seen[1].numbers["server_ratio_high"] > 1.001  # Written before the first update.
    assert seen[1].numbers["ratio_high"] == pytest.approx(1, abs=1e-4)  # To the present weights.
    again = [event for event in trained(config, tmp_path / "two") if isinstance(event, UpdateDone)]
    assert [event.samples for event in again] == [event.samples for event in seen]
    last = weights_of(tmp_path / "one", 3)
    assert all(torch.equal(tensor, last[name]) for name, tensor in weights_of(tmp_path / "two", 3).items())
    # Without a correction the algorithm's own ratio is that to the weights that wrote them.
    off = config_of(1, scale__staleness=1, train__server_ratio="off", train__updates=2, **larger)
    numbers = [event.numbers for event in trained(off, tmp_path / "off") if isinstance(event, UpdateDone)]
    assert numbers[1]["ratio_high"] > 1.001 and "server_ratio_high" not in numbers[1]


def test_a_value_head_is_trained_by_ranks(tmp_path: Path) -> None:
    config = config_of(2, train__algorithm="ppo", train__updates=2)
    numbers = [event.numbers for event in trained(config, tmp_path / "run") if isinstance(event, UpdateDone)]
    plain = config_of(None, train__algorithm="ppo", train__updates=2)
    told = [event.numbers for event in trained(plain, tmp_path / "plain") if isinstance(event, UpdateDone)]
    assert furthest(weights_of(tmp_path / "run", 2), weights_of(tmp_path / "plain", 2)) < 1e-5
    for ours, theirs in zip(numbers, told, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-6)
    assert numbers[0].get("value_explained", 0) == told[0].get("value_explained", 0)


def test_what_ranks_cannot_do_is_told_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="ranks train a critic only as a head"):
        check_training(config_of(2, train__algorithm="ppo", train__critic="seedling"))
    with pytest.raises(ConfigError, match="Set scale.ranks, 1 say"):
        check_training(config_of(None, scale__staleness=1))
    with pytest.raises(ConfigError, match="scale.ranks is for palmette train"):
        check_rows_config(config_of(2, sft__data="rows.jsonl"), "sft")
