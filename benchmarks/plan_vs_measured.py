"""Planned against measured peaks on the CPU, as Markdown tables. `python -m benchmarks.plan_vs_measured`.

Every row is a process of its own with one thread. A search is measured by the largest peak of its phases, loading
included; an update by its peak resident set. Rows that are held out were chosen after the formulas were settled. Exits
with 1 where a plan is below what was measured, or more than 15% above it.
"""

import argparse
import json
import os
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
_JUDGED = {"reward.model": "smollm2-135m", "reward.score": "likelihood"}
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
    "seedling, ets 24, steps of 48": {
        **_LADDER, **_BUDGET, "search.width": 24, "search.kv_budget": "160MiB", "reward.kv_budget": "96MiB",
        "search.step_tokens": 48,
    },
    "smollm2, ets 4, no embedder": {
        **_GYM, **_JUDGED, **_BUDGET, **_ALONE, "search.width": 4, "search.kv_budget": "256MiB",
    },
    "smollm2, ets 16, no embedder": {
        **_GYM, **_JUDGED, **_BUDGET, **_ALONE, "search.width": 16, "search.kv_budget": "512MiB",
    },
    "smollm2, ets 8": {**_GYM, **_JUDGED, **_BUDGET, "search.width": 8, "search.kv_budget": "256MiB"},
}  # fmt: skip

HELD_OUT: dict[str, Settings] = {
    "seedling, ets 40, no embedder, steps of 24": {
        **_LADDER, **_BUDGET, **_ALONE, "search.width": 40, "search.kv_budget": "96MiB", "reward.kv_budget": "48MiB",
        "search.step_tokens": 24,
    },
    "seedling, ets 32, steps of 40": {
        **_LADDER, **_BUDGET, "search.width": 32, "search.kv_budget": "112MiB", "reward.kv_budget": "80MiB",
        "search.step_tokens": 40,
    },
    "smollm2, ets 12, steps of 64, temperature 0.7": {
        **_GYM, **_JUDGED, **_BUDGET, "search.width": 12, "search.kv_budget": "320MiB", "reward.kv_budget": "96MiB",
        "search.step_tokens": 64, "search.total_tokens": 128, "policy.temperature": 0.7,
    },
    "smollm2, ets 6, no embedder, steps of 32, top-p 0.95": {
        **_GYM, **_JUDGED, **_BUDGET, **_ALONE, "search.width": 6, "search.kv_budget": "128MiB",
        "search.step_tokens": 32, "policy.top_p": 0.95,
    },
}  # fmt: skip

_UPDATE = {
    "reward.model": None, "search.strategy": "best_of_n", "memory.prompt_tokens": 64, "train.questions": 2,
    "train.gradient_checkpointing": False, "train.sharing": "off",
}  # fmt: skip
_SEEDLING = {**_UPDATE, "search.total_tokens": 192, "search.width": 16, "train.micro_batch_tokens": 4096}
_SMOLLM2 = {
    **_UPDATE, "policy.model": "smollm2-135m", "search.total_tokens": 96, "search.width": 2,
    "train.micro_batch_tokens": 320,
}  # fmt: skip

UPDATES: dict[str, Settings] = {
    "seedling, full": _SEEDLING,
    "seedling, full, checkpointing": {**_SEEDLING, "train.gradient_checkpointing": True},
    "seedling, full, micro-batches of 8,192 tokens": {
        **_SEEDLING, "search.width": 32, "train.micro_batch_tokens": 8192,
    },
    "seedling, LoRA of rank 16": {**_SEEDLING, "train.method": "lora"},
    "smollm2, full": _SMOLLM2,
    "smollm2, full, checkpointing": {**_SMOLLM2, "train.gradient_checkpointing": True},
    "smollm2, LoRA of rank 8": {**_SMOLLM2, "train.method": "lora", "train.lora_rank": 8},
}  # fmt: skip


def measured_search(settings: Settings) -> int:
    """Run a search in this process; return the most that it held."""
    from benchmarks.peaks import peak_of_run
    from palmette import Searcher
    from palmette.tasks.load import load_task

    with tempfile.TemporaryDirectory() as folder:
        with Searcher(settings=settings) as searcher:
            searcher.search(load_task(searcher.config.task), out=f"{folder}/run")
        return peak_of_run(Path(folder) / "run")


def measured_update(settings: Settings) -> int:
    """Make two updates in this process, of samples as long as they may be; return the most that it held."""
    from benchmarks.peaks import peak_of_process
    from palmette.config import load_config
    from palmette.memory.heap import map_large_blocks
    from palmette.planner.run_plan import job_of
    from palmette.train.update.fake_update import UpdateShape
    from palmette.train.update.learner import Learner, Savings
    from palmette.zoo.load import load_policy

    assert map_large_blocks()
    config = load_config(None, dict(settings))
    update = job_of(config, train=True, served=False).update
    assert update is not None
    rank = update.lora_rank if update.method == "lora" else None
    shape = UpdateShape(
        update.questions * update.group_size, update.prompt_tokens, update.response_tokens, lora_rank=rank
    )
    model, _tokenizer = load_policy(config.policy.model)
    learner = Learner(shape.trained(model), savings=Savings(update.checkpointing), sharing="off")
    for _ in range(2):
        learner.update(shape.samples(), micro_batch_tokens=update.micro_batch_tokens)
    return peak_of_process()


def planned_search(settings: Settings) -> int:
    """Return the planned peak of the same search."""
    from palmette.config import load_config
    from palmette.planner.run_plan import plan_run

    _, plan = plan_run(load_config(None, {**settings, "memory.devices": "cpu:24GiB"}))
    return plan.peak_bytes


def planned_update(settings: Settings, *, predict: bool) -> int:
    """Return what an update alone is planned to hold: by formulas, or predicted where it can be.

    What the heap may keep of freed blocks is left out: here they are returned at once.
    """
    from palmette.config import load_config
    from palmette.planner.lines import HEAP
    from palmette.planner.predict import predicted_lines
    from palmette.planner.run_plan import plan_run

    config = load_config(None, {**settings, "memory.devices": "cpu:24GiB"})
    _, plan = plan_run(config, train=True, predicted=predicted_lines(config)[0] if predict else None)
    update = next(phase for phase in plan.devices[0].phases if phase.name == "update")
    return sum(line.bytes for line in update.lines if line.holder != HEAP)


def measure(flag: str, settings: Settings) -> int:
    """Return what a process of its own measures."""
    command = [sys.executable, "-m", "benchmarks.plan_vs_measured", flag, json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return int(done.stdout.split()[-1])


def print_searches(rows: Mapping[str, Settings]) -> bool:
    """Print planned against measured searches; tell whether every plan is right."""
    print("| search | | planned MiB | measured MiB | planned / measured |\n|---|---|---:|---:|---:|")
    right = True
    for name, settings in rows.items():
        measured, planned = measure("--measure", settings), planned_search(settings)
        right &= is_right(planned / measured)
        held_out = "held out" if name in HELD_OUT else ""
        ratio = f"{planned / measured:.2f}"
        print(f"| {name} | {held_out} | {mib(planned)} | {mib(measured)} | {ratio} |", flush=True)
    return right


def print_updates(rows: Mapping[str, Settings]) -> bool:
    """Print updates planned both ways against measured ones; tell whether every plan is right."""
    print("| update | by formula MiB | predicted MiB | measured MiB | formula / measured | predicted / measured |")
    print("|---|---:|---:|---:|---:|---:|")
    right = True
    for name, settings in rows.items():
        measured = measure("--measure-update", settings)
        plans = [planned_update(settings, predict=predict) for predict in (False, True)]
        right &= all(is_right(planned / measured) for planned in plans)
        ratios = " | ".join(f"{planned / measured:.2f}" for planned in plans)
        print(f"| {name} | {' | '.join(map(mib, plans))} | {mib(measured)} | {ratios} |", flush=True)
    return right


def is_right(ratio: float) -> bool:
    """Tell whether a plan is not below what was measured, and not far above it."""
    return 1 <= ratio <= 1 + MOST_ABOVE


def mib(size: int) -> str:
    """Return bytes as whole MiB."""
    return f"{size / 2**20:.0f}"


def main() -> None:
    """Print a row for every search and every update; fail where a plan is off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--measure-update", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measured_search(json.loads(options.measure)))
        return
    if options.measure_update:
        print(measured_update(json.loads(options.measure_update)))
        return
    searches = {name: row for name, row in {**SEARCHES, **HELD_OUT}.items() if options.only in name}
    updates = {name: row for name, row in UPDATES.items() if options.only in name}
    right = [shown(rows) for shown, rows in ((print_searches, searches), (print_updates, updates)) if rows]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
