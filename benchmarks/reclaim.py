"""Resident memory after a rollout phase, step by step, with and without giving it back. `python -m benchmarks.reclaim`.

Each model is searched with in a process of its own: `python -m benchmarks.reclaim MODEL`.
"""

import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peaks import peak_of_run
from palmette import Searcher
from palmette.config import check_config
from palmette.memory.guard import GivesUpCache
from palmette.memory.heap import trim_heap
from palmette.memory.host import resident_bytes
from palmette.memory.reclaim import reclaim
from palmette.run.parts import build_parts
from palmette.tasks.load import load_task
from palmette.units import format_bytes

WORK = {
    "seedling": {
        "search": {"strategy": "rebase", "width": 256, "questions_in_flight": 8},
        "task": {"questions": 8},
        "policy": {"temperature": 2.0},
    },
    "smollm2-135m": {
        "policy": {"model": "smollm2-135m"},
        "reward": {"model": None},
        "task": {"name": "rg:chain_sum", "questions": 4},
        "search": {"width": 32, "step_tokens": 32, "total_tokens": 64, "questions_in_flight": 4},
    },
}


def measured(model: str) -> list[tuple[str, int, float]]:
    """Search, then let go of the rollout step by step; return what was resident after each, and its seconds."""
    config = check_config(WORK[model], {}, "benchmark")
    rows = [("before anything is loaded", resident_bytes(), 0.0)]
    parts = build_parts(config)
    rows.append(("models loaded", resident_bytes(), 0.0))
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        with Searcher(config=config, parts=parts) as searcher:
            searcher.search(load_task(config.task), out=folder)
        rows.append(("peak of the rollout", peak_of_run(Path(folder)), time.monotonic() - begun))
    rows.append(("after the rollout", resident_bytes(), 0.0))
    caches: tuple[object, ...] = (parts.backend, parts.scorer)
    for part in caches:
        if isinstance(part, GivesUpCache):
            part.give_up_cache()
    rows.append(("KV caches dropped", resident_bytes(), 0.0))
    rows.append(("... and reclaimed", *_reclaimed()))
    del searcher, parts, caches, part
    rows.append(("models dropped, nothing reclaimed", resident_bytes(), 0.0))
    begun = time.monotonic()
    gc.collect()
    rows.append(("garbage collected", resident_bytes(), time.monotonic() - begun))
    begun = time.monotonic()
    trim_heap()
    rows.append(("heap returned", resident_bytes(), time.monotonic() - begun))
    rows.append(("reclaimed once more", *_reclaimed()))
    return rows


def _reclaimed() -> tuple[int, float]:
    freed = reclaim(resident_bytes, least_bytes=2**20)
    return freed.held_bytes, freed.seconds


def main() -> None:
    """Print a table for each model."""
    if len(sys.argv) > 1:
        for name, held, seconds in measured(sys.argv[1]):
            print(f"| {name} | {format_bytes(held)} | {f'{seconds:.2f}' if seconds else ''} |")
        return
    for model in WORK:
        print(f"\n| {model} | resident | seconds |\n|---|---:|---:|", flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.reclaim", model], check=True)


if __name__ == "__main__":
    main()
