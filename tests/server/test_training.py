"""Training with rollouts from a real vLLM: versions of the adapter, ratios, rewards beside those of one process."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from palmette.config import load_config
from palmette.events import UpdateDone
from palmette.run.train import TrainingRun
from tests.server.started import Up

pytestmark = pytest.mark.xdist_group("vllm")

SMALL: dict[str, Any] = {
    "policy.model": "seedling",
    "task.name": "ladder",
    "task.grade": 3,
    "search.width": 8,
    "search.total_tokens": 120,
    "train.method": "lora",
    "train.updates": 5,
    "train.questions": 4,
    "train.learning_rate": 1e-3,
}


def trained(folder: Path, **more: Any) -> list[dict[str, float]]:
    folder.mkdir()
    with TrainingRun(load_config(None, {**SMALL, **more}), folder) as run:
        return [event.numbers for event in run.updates() if isinstance(event, UpdateDone)]


def test_five_updates_on_vllm_are_sampled_with_their_own_adapters_and_rewarded_as_in_one_process(
    vllm: Up, vllm_log: Path, tmp_path: Path
) -> None:
    local = trained(tmp_path / "local")
    served = trained(tmp_path / "served", **{"policy.backend": "vllm", "policy.address": vllm.addresses["policy"]})
    assert [numbers["served_version"] for numbers in served] == [0, 1, 2, 3, 4]
    assert all(numbers["stale_steps"] == numbers["server_ratio_cut"] == 0 for numbers in served)
    for numbers in served:
        assert numbers["server_ratio_low"] == pytest.approx(1, abs=1e-3)
        assert numbers["server_ratio_high"] == pytest.approx(1, abs=1e-3)
    assert vllm_log.read_text(encoding="utf-8").count("Loaded new LoRA adapter") == 5
    # 160 responses each, right or wrong, to the same questions: four standard errors of a difference are 0.21 at most.
    means = [statistics.fmean(numbers["reward"] for numbers in run) for run in (served, local)]
    assert means[0] == pytest.approx(means[1], abs=0.21)
