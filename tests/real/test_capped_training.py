"""A training run whose address space is cut in mid-run, against the same one with all there is."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.capped_training import CUT_AFTER, largest_difference
from palmette.event_log import read_events
from palmette.events import OomRetry, UpdateDone

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "src" / "palmette" / "zoo"
SMALL = {
    "task.grade": 2, "train.updates": 2, "train.questions": 2, "search.width": 12, "search.total_tokens": 80,
    "train.micro_batch_tokens": 2048,
}  # fmt: skip


def test_memory_cut_to_half_of_the_need_in_mid_run_changes_no_weight_but_by_rounding(tmp_path: Path) -> None:
    given = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "benchmarks.capped_training", str(tmp_path / "runs"), "--share", "0.5", *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    free, capped = tmp_path / "runs/free", tmp_path / "runs/capped"
    assert largest_difference(capped, free, 2) < 1e-6
    assert _apart(capped, free) < 1e-3 * _apart(ZOO / "seedling", free)
    assert not [event for event in read_events(free) if isinstance(event, OomRetry)]
    told = [event for event in read_events(capped) if isinstance(event, (OomRetry, UpdateDone))]
    assert isinstance(told[CUT_AFTER - 1], UpdateDone)  # Nothing failed before the cut.
    retries = [event for event in told if isinstance(event, OomRetry)]
    assert "update" in {retry.guard for retry in retries}
    assert all(retry.limit is not None and retry.limit < retry.tried for retry in retries)


def _apart(ours: Path, theirs: Path) -> float:
    """Return the distance of two models' weights."""
    models = []
    for folder in (ours, theirs):
        last = folder / "checkpoints" / "update-00000002"
        models.append(load_file((last if last.exists() else folder) / "model.safetensors"))
    return math.sqrt(sum(float((models[0][name] - weight).square().sum()) for name, weight in models[1].items()))
