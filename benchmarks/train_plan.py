"""Training runs on the CPU: planned against measured peaks, phase by phase. `python -m benchmarks.train_plan`.

Every run is `palmette train` in a process of its own with one thread, which is told that its device has just what its
plan asks for. What was planned and what was measured stand in its events. Exits with 1 where a phase was planned below
what was measured, or more than 15% above it.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peaks import phases_of_run
from benchmarks.plan_vs_measured import is_right, mib
from palmette.config import load_config
from palmette.planner.lines import HEAP
from palmette.planner.run_plan import plan_run
from palmette.run.training_checks import training_config

Settings = Mapping[str, Any]

PHASES = ("rollout", "hand-over", "reference", "values", "update")

_COMMON = {"train.checkpoint_every": 100, "train.gradient_checkpointing": False, "train.entropy_weight": 0.001}
_SEEDLING = {
    **_COMMON, "task.grade": 4, "search.width": 16, "search.total_tokens": 80, "memory.prompt_tokens": 32,
    "train.questions": 8, "train.updates": 3, "train.learning_rate": 1.0e-4, "train.micro_batch_tokens": 2048,
}  # fmt: skip
_TREES = {
    "task.grade": 2, "search.strategy": "fixed_tree", "search.branches": [4, 2, 2], "search.depth": 8,
    "train.micro_batch_tokens": 512,
}  # fmt: skip
_SMOLLM2 = {
    **_COMMON, "policy.model": "smollm2-135m", "task.name": "rg:chain_sum", "search.width": 8,
    "search.total_tokens": 48, "memory.prompt_tokens": 96, "train.questions": 2, "train.updates": 2,
    "train.learning_rate": 1.0e-5, "train.micro_batch_tokens": 512,
}  # fmt: skip
_KL = {"train.kl_weight": 0.02}
_LORA = {"train.method": "lora"}

RUNS: dict[str, Settings] = {
    "seedling, rows": {**_SEEDLING, "train.sharing": "off"},
    "seedling, KL divergence, packed": {**_SEEDLING, **_KL, "train.sharing": "packed"},
    "seedling, checkpointing, depth first": {
        **_SEEDLING, "train.gradient_checkpointing": True, "train.sharing": "depth_first",
    },
    "seedling, LoRA, KL divergence": {**_SEEDLING, **_KL, **_LORA},
    "seedling, trees, depth first": {**_SEEDLING, **_TREES, "train.sharing": "depth_first"},
    "seedling, PPO with its critic": {**_SEEDLING, "train.algorithm": "ppo"},
    "smollm2, KL divergence": {**_SMOLLM2, **_KL},
    "smollm2, LoRA, KL divergence": {**_SMOLLM2, **_KL, **_LORA},
}  # fmt: skip


def least_device(settings: Settings) -> str:
    """Return the smallest device that the plan of a run fits, without room for a heap that keeps freed blocks."""
    config = training_config(
        load_config(None, {"search.strategy": "best_of_n", **settings, "memory.devices": "cpu:1TiB"})
    )
    _, plan = plan_run(config, train=True)
    asked = [
        sum(line.bytes for line in phase.lines if line.holder != HEAP) / phase.share for phase in plan.devices[0].phases
    ]
    return f"cpu:{math.ceil(max(asked) / 2**20)}MiB"


def run(settings: Settings, folder: Path) -> None:
    """Train in a process of its own."""
    told = {**settings, "memory.devices": least_device(settings)}
    given = [part for key, value in told.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "palmette", "train", "--out", str(folder), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)


def print_run(name: str, folder: Path) -> bool:
    """Print a row for each phase of a run; tell whether every plan is right."""
    right = True
    for phase in phases_of_run(folder):
        if phase.name in PHASES:
            assert phase.planned_bytes is not None
            ratio = phase.planned_bytes / phase.peak_bytes
            right &= is_right(ratio)
            sizes = f"{mib(phase.planned_bytes)} | {mib(phase.peak_bytes)}"
            print(f"| {name} | {phase.name} | {sizes} | {ratio:.3f} |", flush=True)
            name = ""
    return right


def main() -> None:
    """Train every run; print its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    options = parser.parse_args()
    print("| run | phase | planned MiB | measured MiB | planned / measured |\n|---|---|---:|---:|---:|")
    right = True
    for name, settings in RUNS.items():
        if options.only in name:
            with tempfile.TemporaryDirectory() as place:
                run(settings, Path(place) / "run")
                right &= print_run(name, Path(place) / "run")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
