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

from palmette.event_log import FILE_NAME, read_events
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


def start(folder: Path, updates: int) -> "subprocess.Popen[bytes]":
    """Start a run, or go on with it."""
    return subprocess.Popen(command(folder, updates), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def recorded(folder: Path) -> int:
    """Return how many updates have been recorded, those that were made again counted again."""
    try:
        return (folder / FILE_NAME).read_bytes().count(b'"kind":"update_done"')
    except FileNotFoundError:
        return 0


def kill_at(folder: Path, updates: int, moments: random.Random, update_seconds: float) -> str:
    """Run until a random moment, then kill; return when that was, an empty text if the run ended before.

    The moment is within the time of one update after the next one has been recorded: while a checkpoint is written,
    or in the rollout, the reference or the update that follow. One in five times it is counted from the start.
    """
    begun, wait = time.monotonic(), moments.uniform(0, update_seconds)
    before = -1 if moments.random() < 0.2 else recorded(folder)
    process = start(folder, updates)
    while process.poll() is None and recorded(folder) <= before:
        time.sleep(0.01)
    after = "its start" if before < 0 else "an update"
    try:
        process.wait(timeout=wait)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return f"{wait:.2f} s after {after}, {time.monotonic() - begun:.1f} s in all"
    return ""


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
        start(alone, options.updates).wait()
        done = [event for event in read_events(alone) if isinstance(event, UpdateDone)]
        update_seconds = sum(sum(event.seconds.values()) for event in done) / len(done)
        print(f"undisturbed: {time.monotonic() - begun:.0f} s, an update {update_seconds:.2f} s", flush=True)
        for kill in range(options.kills):
            told = kill_at(disturbed, options.updates, moments, update_seconds)
            if not told:
                print(f"ended before it could be killed, after {kill} kills", flush=True)
                break
            kept = sorted(path.name for path in (disturbed / "checkpoints").glob("*")) if disturbed.exists() else []
            print(f"killed {told}; on disk: {', '.join(kept) or 'no checkpoint'}", flush=True)
        start(disturbed, options.updates).wait()
        before, after = result(alone, options.updates), result(disturbed, options.updates)
        for name in before:
            print(f"{name}: {'the same' if before[name] == after[name] else 'OTHERS'}")
        sys.exit(0 if before == after else 1)


if __name__ == "__main__":
    main()
