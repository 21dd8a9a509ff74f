"""Rollouts of training on real Ray: samples and final weights of 1 and 2 workers are those of the plain run."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palmette.config import load_config
from palmette.event_log import read_events
from palmette.events import Noticed, UpdateDone, WorkerEnded
from palmette.run.train import TrainingRun
from palmette.scale.crew import Member

pytestmark = [pytest.mark.kills, pytest.mark.filterwarnings("ignore")]

SMALL: dict[str, Any] = {
    "policy.model": "seedling", "task.name": "ladder", "task.grade": 2, "task.questions": 20, "search.width": 4,
    "search.total_tokens": 60, "train.updates": 3, "train.questions": 4, "train.learning_rate": 1e-3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Free what Ray has left of its processes while warnings of it are ignored."""
    yield
    gc.collect()


def trained(folder: Path, kill_after: int | None = None, **scale: Any) -> tuple[list[Any], bytes]:
    """Return the samples of each update and the bytes of the final weights; kill a worker after an update."""
    folder.mkdir()
    config = load_config(None, {**SMALL, **{f"scale.{key}": value for key, value in scale.items()}})
    samples = []
    with TrainingRun(config, folder) as run:
        for event in run.updates():
            if isinstance(event, UpdateDone):
                samples.append(event.samples)
                if event.update == kill_after:
                    os.kill(_process(run), signal.SIGKILL)
    return samples, (folder / "checkpoints" / "update-00000003" / "model.safetensors").read_bytes()


def _process(run: TrainingRun) -> int:
    """Return the process of the first worker."""
    import json

    import ray

    assert run._workers is not None
    member: Member = run._workers._members[0]
    return int(json.loads(ray.get(member.actor.hello.remote()))["process"])


def test_one_and_two_workers_give_the_weights_of_the_plain_run_also_when_one_is_killed(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain")
    assert trained(tmp_path / "one", workers=1) == plain
    assert trained(tmp_path / "two", workers=2, kill_after=1) == plain
    ended = [event.lost for event in read_events(tmp_path / "two") if isinstance(event, WorkerEnded)]
    assert ended == ["its process ended", "", ""]
    told = [event.text for event in read_events(tmp_path / "two") if isinstance(event, Noticed)]
    assert any("is lost: its process ended" in text for text in told)
    assert trained(tmp_path / "broadcast", workers=2, transport="broadcast") == plain
