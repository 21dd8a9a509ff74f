"""A training run with ranks, of which one or the driver is killed with SIGKILL at random moments, and one left alone.

    python -m benchmarks.killed_ranks --ranks 2 --kills 10 --who rank
    python -m benchmarks.killed_ranks --ranks 2 --kills 10 --who driver

A run that loses a rank goes on by itself, one that loses its driver is started again. All must end with the same bytes:
weights and optimizer state.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.killed_training import command, recorded
from palmette.event_log import read_events
from palmette.events import Noticed, UpdateDone
from palmette.run.rank_learner import LOGS
from palmette.train.checkpoints.shard_files import FOLDER


def start(folder: Path, updates: int, ranks: int) -> "subprocess.Popen[bytes]":
    """Start a run with ranks, or go on with it."""
    given = ["--set", f"scale.ranks={ranks}", "--set", "scale.restarts=100"]
    return subprocess.Popen([*command(folder, updates), *given], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def result(folder: Path, updates: int) -> dict[str, bytes]:
    """Return the bytes of the last checkpoint: the model's, and those of every rank's state."""
    last = folder / "checkpoints" / f"update-{updates:08d}"
    files = [last / "model.safetensors", *sorted((last / FOLDER).iterdir())]
    return {path.name: path.read_bytes() for path in files}


def rank_process(folder: Path, rank: int) -> int | None:
    """Return the process of a rank, as its log tells; None before there is one."""
    log = folder / LOGS / f"rank-{rank}.log"
    told = re.findall(r"^process (\d+) is rank", log.read_text(), re.MULTILINE) if log.exists() else []
    return int(told[-1]) if told else None


def wait_for_update(process: "subprocess.Popen[bytes]", folder: Path, before: int) -> bool:
    """Wait until an update more is recorded; return False if the run ended."""
    while process.poll() is None:
        if recorded(folder) > before:
            return True
        time.sleep(0.01)
    return False


def kill_driver(folder: Path, updates: int, ranks: int, wait: float) -> bool:
    """Run until a random moment after the next update, kill the driver; return False if the run ended before."""
    process = start(folder, updates, ranks)
    if wait_for_update(process, folder, recorded(folder)):
        try:
            process.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
    return False


def kill_rank(process: "subprocess.Popen[bytes]", folder: Path, rank: int, wait: float) -> bool:
    """Kill a rank of a run at a random moment after its next update; return False if the run ended before."""
    if not wait_for_update(process, folder, recorded(folder)):
        return False
    time.sleep(wait)
    number = rank_process(folder, rank)
    if process.poll() is not None or number is None:
        return False
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return False  # Between two groups of ranks: the next moment is another.
    return True


def main() -> None:
    """Run both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--who", choices=("rank", "driver"), default="rank")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        alone, disturbed = Path(place) / "alone", Path(place) / "disturbed"
        begun = time.monotonic()
        start(alone, options.updates, options.ranks).wait()
        done = [event for event in read_events(alone) if isinstance(event, UpdateDone)]
        seconds = sum(sum(event.seconds.values()) for event in done) / len(done)
        print(f"undisturbed: {time.monotonic() - begun:.0f} s, an update {seconds:.2f} s", flush=True)
        kills = 0
        process = start(disturbed, options.updates, options.ranks) if options.who == "rank" else None
        while kills < options.kills:
            wait = moments.uniform(0, seconds)
            if process is not None:
                was_killed = kill_rank(process, disturbed, moments.randrange(options.ranks), wait)
                ended = process.poll() is not None
            else:
                was_killed = kill_driver(disturbed, options.updates, options.ranks, wait)
                ended = not was_killed
            kills += was_killed
            if was_killed:
                print(f"killed {wait:.2f} s after an update, {recorded(disturbed)} recorded", flush=True)
            if ended:
                break
        (process or start(disturbed, options.updates, options.ranks)).wait()
        notices = [event for event in read_events(disturbed) if isinstance(event, Noticed) and event.about == "rank"]
        before, after = result(alone, options.updates), result(disturbed, options.updates)
        print(f"{kills} kills of a {options.who}, {len(notices)} groups of ranks lost")
        for name in before:
            print(f"{name}: {'the same' if before[name] == after.get(name) else 'OTHERS'}")
        sys.exit(0 if before == after else 1)


if __name__ == "__main__":
    main()
