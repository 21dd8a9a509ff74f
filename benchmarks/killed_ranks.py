"""A training run on a cluster of this machine of which something is killed with SIGKILL at random moments.

    python -m benchmarks.killed_ranks --who actor     # a worker that writes rollouts, of 2
    python -m benchmarks.killed_ranks --who rank      # a rank of the learner, of 2, with one worker
    python -m benchmarks.killed_ranks --who driver    # the command itself, with 2 ranks and one worker
    python -m benchmarks.killed_ranks --who node      # a node of Ray with the worker on it, of 2 nodes

A run that loses an actor, a rank or a node goes on by itself, one that loses its driver is started again. All must end
with the weights and the optimizer state of a run without workers that was left alone, bit for bit. Tensors are
compared, not files: which rank writes a number that all have is not the same each time.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.killed_training import SETTINGS, recorded
from palmette.event_log import read_events
from palmette.events import Noticed, UpdateDone
from palmette.run.rank_learner import LOGS
from palmette.train.checkpoints.shard_files import FOLDER, read_whole

# Where a loss reads the log-probabilities that workers measured, their rounding by batch would be seen.
GIVEN = {**SETTINGS, "train.mini_batches": "1", "scale.restarts": "100"}

ROOT = Path(__file__).parents[1]

Process = subprocess.Popen[bytes]


class Run:
    """A training run as a process, started again where it is killed."""

    def __init__(self, folder: Path, updates: int, settings: dict[str, Any]) -> None:
        self.folder = folder
        told = {**GIVEN, **settings}
        given = [part for key, value in told.items() for part in ("--set", f"{key}={value}")]
        self._command = [sys.executable, "-W", "ignore", "-m", "palmette", "train", "--out", str(folder)]
        self._command += ["--updates", str(updates), *given]
        self.process = self.start()

    def start(self) -> Process:
        """Start it, or go on with it. Workers import palmette from where this process does."""
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        log = self.folder.with_suffix(".log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self._command, stderr=log, stdout=log, env={**os.environ, "PYTHONPATH": path}
            )
        return self.process

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self.process.poll() is not None

    def wait_for_update(self, before: int) -> bool:
        """Wait until an update more is recorded; return False if the run ended."""
        while not self.has_ended:
            if recorded(self.folder) > before:
                return True
            time.sleep(0.01)
        return False


def result(folder: Path, updates: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of the last checkpoint: the model's, and the optimizer's state, of ranks too."""
    last = folder / "checkpoints" / f"update-{updates:08d}"
    is_shared = (last / FOLDER).is_dir()
    state = read_whole(last / FOLDER) if is_shared else load_file(last / "training.safetensors")
    return {"weights": load_file(last / "model.safetensors"), "optimizer state": state}


def others(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are not the same, bit for bit."""
    names = one.keys() | other.keys()
    return [name for name in names if name not in one or name not in other or not torch.equal(one[name], other[name])]


def rank_processes(folder: Path) -> list[int]:
    """Return the process of each rank, as its log tells."""
    logs = sorted((folder / LOGS).glob("rank-*.log"))
    told = [re.findall(r"^process (\d+) is rank", log.read_text(), re.MULTILINE) for log in logs]
    return [int(numbers[-1]) for numbers in told if numbers]


def worker_processes(driver: int) -> list[int]:
    """Return the actors that write rollouts among the descendants of a driver that has started Ray by itself."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"RolloutWorker" in (place / "cmdline").read_bytes() and driver in _ancestors(int(place.name)):
                found.append(int(place.name))
        except OSError:
            continue  # It has ended meanwhile.
    return found


def _ancestors(process: int) -> Iterator[int]:
    while process > 1:
        told = Path(f"/proc/{process}/stat").read_text()
        process = int(told.rpartition(")")[2].split()[1])
        yield process


def kill(process: int) -> bool:
    """Kill a process; return False if it is gone already."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Nodes:
    """Ray with two nodes on this machine; the second can be killed, and another one takes its place."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        self.cluster = Cluster(initialize_head=True, head_node_args={**self._node, "include_dashboard": False})
        self._second = self.cluster.add_node(**self._node)

    def kill_one(self) -> bool:
        """Kill all processes of the second node, and start another."""
        self.cluster.remove_node(self._second, allow_graceful=False)
        self._second = self.cluster.add_node(**self._node)
        return True


@contextmanager
def nodes() -> Iterator[Nodes]:
    """Ray for the runs of this process."""
    told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    told |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PYTHONPATH": str(ROOT / "src")}
    os.environ.update(told)
    found = Nodes()
    try:
        yield found
    finally:
        found.cluster.shutdown()


def strike(who: str, run: Run, place: Nodes | None, moments: random.Random) -> bool:
    """Kill what is to be killed, as it is at this moment; return False if there is none."""
    if who == "driver":
        killed = kill(run.process.pid)
        run.process.wait()
        run.start()
        return killed
    if who == "node":
        assert place is not None
        return place.kill_one()
    there = rank_processes(run.folder) if who == "rank" else worker_processes(run.process.pid)
    return bool(there) and kill(moments.choice(there))


SCALES: dict[str, dict[str, Any]] = {
    "actor": {"scale.workers": 2, "scale.worker_cpus": 1},
    "rank": {"scale.workers": 1, "scale.worker_cpus": 1, "scale.ranks": 2},
    "driver": {"scale.workers": 1, "scale.worker_cpus": 1, "scale.ranks": 2},
    "node": {"scale.workers": 2, "scale.worker_cpus": 1},
}


def disturbed(options: argparse.Namespace, folder: Path, place: Nodes | None, seconds: float) -> int:
    """Run to the end; return how often something was killed. Moments are within one update after another is done."""
    moments = random.Random(options.seed)
    address = {} if place is None else {"scale.address": place.cluster.address}
    run = Run(folder, options.updates, {**SCALES[options.who], **address})
    kills = 0
    try:
        while kills < options.kills and run.wait_for_update(recorded(folder)):
            wait = moments.uniform(0, seconds)
            time.sleep(wait)
            if run.has_ended:
                break
            if strike(options.who, run, place, moments):
                kills += 1
                print(f"kill {kills}: {wait:.2f} s after an update, {recorded(folder)} recorded", flush=True)
        code = run.process.wait()
    finally:
        run.process.kill()  # Only where this process is stopped: else it has ended.
    if code:
        print(f"ended with code {code}: {folder.with_suffix('.log').read_text()[-600:]}")
    return kills


def main() -> None:
    """Run both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--updates", type=int, default=14)
    parser.add_argument("--who", choices=tuple(SCALES), default="actor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", type=Path, help="folder of the run that is left alone; made where it is not there")
    options = parser.parse_args()
    ranks = {key: value for key, value in SCALES[options.who].items() if key == "scale.ranks"}
    with tempfile.TemporaryDirectory() as there:
        alone, other = options.alone or Path(there) / "alone", Path(there) / "disturbed"
        begun = time.monotonic()
        if not alone.exists():
            Run(alone, options.updates, ranks).process.wait()
        done = [event for event in read_events(alone) if isinstance(event, UpdateDone)]
        seconds = sum(sum(event.seconds.values()) for event in done) / len(done)
        print(f"undisturbed: {time.monotonic() - begun:.0f} s, an update {seconds:.2f} s", flush=True)
        begun = time.monotonic()
        if options.who == "node":
            with nodes() as place:
                kills = disturbed(options, other, place, seconds)
        else:
            kills = disturbed(options, other, None, seconds)
        told = [event for event in read_events(other) if isinstance(event, Noticed)]
        lost = sum("is lost" in event.text or event.about == "rank" for event in told)
        before, after = result(alone, options.updates), result(other, options.updates)
        print(f"{kills} kills of a {options.who} in {time.monotonic() - begun:.0f} s, {lost} losses noticed by the run")
        differ = {name: others(before[name], after[name]) for name in before}
        for name, found in differ.items():
            told_of = f"OTHERS: {len(found)}, {found[0]}" if found else "the same"
            print(f"{name}: {told_of} ({len(before[name])} tensors)")
        sys.exit(0 if not any(differ.values()) and kills == options.kills else 1)


if __name__ == "__main__":
    main()
