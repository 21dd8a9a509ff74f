"""A training run killed with SIGKILL at random moments and started again each time, against one that was left alone.

    python -m benchmarks.killed_training --kills 10

The seedling learns ladder with a checkpoint after every update. Both runs must end with the same bytes: weights,
optimizer state, statistics.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from palmette.event_log import read_events
from palmette.events import UpdateDone

SETTINGS = {
    "task.grade": "2", "task.questions": "60", "search.width": "4", "search.total_tokens": "80",
    "train.questions": "4", "train.learning_rate": "1e-3", "train.checkpoint_every": "1", "train.kl_weight": "0.02",
    "train.mini_batches": "2",
}  # fmt: skip


def command(folder: Path, updates: int) -> list[str]:
    """Return the command of a run; the same one goes on with it."""
    given = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "palmette", "train", "--out", str(folder), "--updates", str(updates), *given]


def result(folder: Path, updates: int) -> dict[str, object]:
    """Return what a run ended with: the bytes of its last checkpoint and the statistics of every update."""
    last = folder / "checkpoints" / f"update-{updates:08d}"
    told: dict[int, dict[str, float]] = {}
    for event in read_events(folder):
        if isinstance(event, UpdateDone):
            told[event.update] = {name: value for name, value in event.numbers.items() if "second" not in name}
    files = {name: (last / name).read_bytes() for name in ("model.safetensors", "training.safetensors")}
    return {**files, "statistics": told}


def main() -> None:
    """Run both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        alone, disturbed = Path(place) / "alone", Path(place) / "disturbed"
        begun = time.monotonic()
        subprocess.run(
            command(alone, options.updates), check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        seconds = time.monotonic() - begun
        print(f"undisturbed: {seconds:.0f} s", flush=True)
        kills = 0
        while kills < options.kills:
            wait = moments.uniform(0.2, 0.6) * seconds
            process = subprocess.Popen(
                command(disturbed, options.updates), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            try:
                process.wait(timeout=wait)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
                kept = sorted(path.name for path in (disturbed / "checkpoints").glob("*")) if disturbed.exists() else []
                print(f"killed after {wait:.1f} s; on disk: {', '.join(kept[-2:]) or 'nothing'}", flush=True)
            else:
                print(f"ended before it could be killed, after {kills} kills", flush=True)
                break
        subprocess.run(
            command(disturbed, options.updates), check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        before, after = result(alone, options.updates), result(disturbed, options.updates)
        for name in before:
            print(f"{name}: {'the same' if before[name] == after[name] else 'OTHERS'}")


if __name__ == "__main__":
    main()
