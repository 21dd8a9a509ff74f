"""Planned against measured peaks of searches on the CPU, as a Markdown table. `python -m benchmarks.plan_vs_measured`.

Every row is a process of its own, measured by the largest peak of its phases, loading included. Exits with 1 where a
plan is below what was measured, or more than 15% above it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_ABOVE = 0.15

Settings = Mapping[str, Any]

_LADDER = {
    "task.questions": 16, "search.step_tokens": 32, "search.total_tokens": 256, "search.depth": 14,
    "memory.prompt_tokens": 64,
}  # fmt: skip
_GYM = {
    "policy.model": "smollm2-135m", "task.name": "rg:chain_sum", "task.questions": 2, "search.step_tokens": 48,
    "search.total_tokens": 96, "search.depth": 3, "memory.prompt_tokens": 96,
}  # fmt: skip
_JUDGED = {"reward.model": "smollm2-135m", "reward.score": "likelihood", "reward.kv_budget": "64MiB"}
_BUDGET = {"search.strategy": "ets", "reward.kv_budget": "64MiB"}
_ALONE = {"search.lambda_diversity": 0.0}

SEARCHES: dict[str, Settings] = {
    "seedling, ets 16, no embedder": {**_LADDER, **_BUDGET, **_ALONE, "search.width": 16, "search.kv_budget": "64MiB"},
    "seedling, ets 64, no embedder": {**_LADDER, **_BUDGET, **_ALONE, "search.width": 64, "search.kv_budget": "128MiB"},
    "seedling, ets 16": {**_LADDER, **_BUDGET, "search.width": 16, "search.kv_budget": "64MiB"},
    "seedling, ets 64": {**_LADDER, **_BUDGET, "search.width": 64, "search.kv_budget": "256MiB"},
    "seedling with a scalar head, ets 16": {
        **_LADDER, **_BUDGET, "search.width": 16, "search.kv_budget": "64MiB", "reward.model": "seedling-prm",
    },
    "smollm2, ets 4, no embedder": {
        **_GYM, **_JUDGED, **_BUDGET, **_ALONE, "search.width": 4, "search.kv_budget": "256MiB",
    },
    "smollm2, ets 16, no embedder": {
        **_GYM, **_JUDGED, **_BUDGET, **_ALONE, "search.width": 16, "search.kv_budget": "512MiB",
    },
    "smollm2, ets 8": {**_GYM, **_JUDGED, **_BUDGET, "search.width": 8, "search.kv_budget": "256MiB"},
}  # fmt: skip

UPDATES: dict[str, Settings] = {}
"""Rows of updates: settings of `policy` and `train` without a reward model. A row needs `measured_update`."""


def measured_search(settings: Settings) -> int:
    """Run a search in this process; return the most that it held."""
    from benchmarks.peaks import peak_of_run
    from palmette import run
    from palmette.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        config = load_config(None, {**settings, "out": f"{folder}/run"})
        run.start_search(run.new_folder(config), config, lambda done, total: None)
        return peak_of_run(Path(folder) / "run")


def measured_update(settings: Settings) -> int:
    """Run one update in this process; return the most that it held."""
    raise NotImplementedError("updates are planned, not yet run")


def planned_search(settings: Settings) -> int:
    """Return the planned peak of the same search."""
    from palmette.config import load_config
    from palmette.planning import plan_run

    _, plan = plan_run(load_config(None, {**settings, "memory.devices": "cpu:24GiB"}))
    return plan.peak_bytes


def planned_update(settings: Settings) -> int:
    """Return what the phase of the update is planned to hold."""
    from palmette.config import load_config
    from palmette.planning import plan_run

    _, plan = plan_run(load_config(None, {**settings, "memory.devices": "cpu:24GiB"}), train=True)
    return next(phase.bytes for phase in plan.devices[0].phases if phase.name == "update")


def main() -> None:
    """Print a row for every search; fail where a plan is off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--measure-update", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measured_search(json.loads(options.measure)))
        return
    if options.measure_update:
        print(measured_update(json.loads(options.measure_update)))
        return
    print("| run | planned MiB | measured MiB | planned / measured |\n|---|---:|---:|---:|")
    off = 0
    for name, settings in {**SEARCHES, **UPDATES}.items():
        if options.only and options.only not in name:
            continue
        flag, planning = ("--measure", planned_search) if name in SEARCHES else ("--measure-update", planned_update)
        command = [sys.executable, "-m", "benchmarks.plan_vs_measured", flag, json.dumps(settings)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        measured, planned = int(done.stdout.split()[-1]), planning(settings)
        ratio = planned / measured
        off += not 1 <= ratio <= 1 + MOST_ABOVE
        print(f"| {name} | {planned / 2**20:.0f} | {measured / 2**20:.0f} | {ratio:.3f} |", flush=True)
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
