"""What a search on workers costs beside the plain command: throughput with 1, 2 and 4 workers, and Ray's own part.

    python -m benchmarks.scale_search --workers 1,2,4 --questions 48 --out runs/scale_search.json
    python -m benchmarks.scale_search --workers 1 --questions 20,220 --nothing

Every run is a command of its own on the same questions, with as many threads in all as this machine has cores: a worker
has an equal part of them, at least one. Trees are compared with those of the plain command. Seconds of search are those
of the run's session, without loading. Processor seconds are those of the command and of every process below it, Ray's
own too, whatever else the machine does meanwhile. With two numbers of questions, what one question costs of them is the
difference of both runs over that of the questions: starting and loading have no part in it. With `--nothing` the policy
does no work, and what is left is the search loop, the driver, Ray and the log. The file holds the seconds of every
question, by worker.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.same_trees import same_trees
from palmette.event_log import read_events
from palmette.events import QuestionFinished, QuestionTimed, Session, WorkerEnded

ROOT = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")
_FAKE = ("--set", "policy.model=tests.fake_policy:InProcess", "--reward", "none", "--set", "search.total_tokens=60")


@dataclass
class Run:
    """One run: `workers` None for the plain command."""

    workers: int | None
    questions: int
    tokens: int
    search_seconds: float
    cpu_seconds: float
    same_trees: bool
    peak_bytes: list[int] = field(default_factory=list)
    timed: list[dict[str, Any]] = field(default_factory=list)
    """The seconds of each question, where it was searched and when it began."""


class CpuOfTree:
    """Reads the processor time of a process and all below it, until it ends; what a process used last is kept."""

    def __init__(self, process: int) -> None:
        self._root = process
        self._seconds: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "CpuOfTree":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """Processor seconds of all processes seen so far."""
        return sum(self._seconds.values())

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self._look()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        used: dict[int, float] = {}
        for entry in os.listdir("/proc"):
            if not entry.isdecimal():
                continue
            try:
                words = Path("/proc", entry, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
            except OSError:
                continue
            fields = words.split()
            parents[int(entry)] = int(fields[1])
            used[int(entry)] = (int(fields[11]) + int(fields[12])) / _TICKS
        below = {self._root} | {known for known in self._seconds if known in parents}
        grown = True
        while grown:
            added = {process for process, parent in parents.items() if parent in below and process not in below}
            below |= added
            grown = bool(added)
        self._seconds |= {process: used[process] for process in below if process in used}


def run(workers: int | None, questions: int, arguments: argparse.Namespace, folder: Path, plain: Path | None) -> Run:
    """Run one command and read what it recorded."""
    cores = len(os.sched_getaffinity(0))
    flags = ["--strategy", arguments.strategy, "--width", str(arguments.width), "--questions", str(questions)]
    flags += _FAKE if arguments.nothing else ()
    flags += ["--set", f"search.questions_in_flight={arguments.in_flight}", "--out", str(folder)]
    if workers is not None:
        share = cores / workers
        flags += ["--set", f"scale.workers={workers}", "--set", f"scale.worker_cpus={share}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    if (
        workers is not None
    ):  # Processes that wait by spinning are in each other's way; the plain command is at its best.
        environment |= {"OMP_NUM_THREADS": str(cores), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "palmette", "search", *flags, "--json"]
    with (
        subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL) as process,
        CpuOfTree(process.pid) as cpu,
    ):
        if process.wait() != 0:
            raise SystemExit(f"{' '.join(command)} failed")
    events = list(read_events(folder))
    ended = [event for event in events if isinstance(event, WorkerEnded)]
    timed = [asdict(event) for event in events if isinstance(event, QuestionTimed)]
    tokens = sum(event.generated_tokens for event in events if isinstance(event, QuestionFinished))
    return Run(
        workers=workers,
        questions=questions,
        tokens=tokens,
        search_seconds=sum(event.seconds for event in events if isinstance(event, Session)),
        cpu_seconds=round(cpu.seconds, 2),
        same_trees=plain is None or same_trees(plain, folder),
        peak_bytes=[event.peak_bytes for event in ended],
        timed=timed,
    )


def main() -> None:
    """Run the plain command and each number of workers, alternating, `--times` times; print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, with commas between")
    parser.add_argument("--questions", default="48", help="how many; two numbers with a comma between")
    parser.add_argument("--strategy", default="rebase")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=4, help="questions at a time in each process")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--nothing", action="store_true", help="a policy that costs nothing")
    parser.add_argument("--out", type=Path, help="JSON file with every run and the seconds of every question")
    arguments = parser.parse_args()
    counts = sorted(map(int, arguments.questions.split(",")))
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as scratch:
        plain: dict[int, Path] = {}
        for turn, questions in product(range(arguments.times), counts):
            for workers in (None, *map(int, arguments.workers.split(","))):
                folder = Path(scratch, f"{turn}-{questions}-{workers or 'plain'}")
                runs.append(run(workers, questions, arguments, folder, plain.get(questions)))
                plain.setdefault(questions, folder)
                print(_line(runs[-1]), flush=True)
    if len(counts) > 1:
        for workers in dict.fromkeys(done.workers for done in runs):
            mine = [done for done in runs if done.workers == workers]
            few, many = ([done for done in mine if done.questions == count] for count in (counts[0], counts[-1]))
            more = (_mean(many) - _mean(few)) / (counts[-1] - counts[0])
            print(f"{_name(workers):10} {1000 * more:7.2f} ms of CPU for one more question")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        told = {
            "moment": round(time.time()),
            "cores": len(os.sched_getaffinity(0)),
            "runs": [asdict(run) for run in runs],
        }
        arguments.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    sys.exit(not all(run.same_trees for run in runs))


def _mean(runs: Sequence[Run]) -> float:
    return sum(done.cpu_seconds for done in runs) / len(runs)


def _name(workers: int | None) -> str:
    return "plain" if workers is None else f"{workers} workers"


def _line(done: Run) -> str:
    rate = done.tokens / done.search_seconds
    asked = f"{_name(done.workers):10} {done.questions} questions"
    told = f"{asked} in {done.search_seconds:.1f} s of search, {rate:.0f} tokens/s"
    return f"{told}, {done.cpu_seconds:.1f} CPU s in all; trees {'equal' if done.same_trees else 'DIFFER'}"


if __name__ == "__main__":
    main()
