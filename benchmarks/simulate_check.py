"""Simulated against real runs with 1, 2 and 4 workers of one thread each: seconds per question, seconds per update.

    python -m benchmarks.simulate_check
    python -m benchmarks.simulate_check --with ray
    python -m benchmarks.simulate_check --clock cpu

Costs come from a run of its own, over other questions. Workers are processes that each search their part of the
questions, all from the same moment on, or with `--with ray` those of `scale.workers`. "same" simulates the trees that
the real run had, "drawn" draws questions from the run that costs were measured on, as `palmette simulate` does. Where
there are more workers than cores, they share them.

`--clock cpu` is for a machine that others use: processes count CPU seconds in place of those of the wall, and the real
number is that of the worker with the most; they run one after the other. It says nothing of workers that share cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from palmette.simulate.costs import Costs
from palmette.simulate.measured import read_learner, with_updates
from palmette.simulate.scaling import draw, measured_costs, setup_of
from palmette.simulate.simulation import simulate
from palmette.simulate.work import Recorded, read_run

SKIPPED = 1000
"""The questions that costs are measured on come after so many others."""

_CLOCKED = "import time\nif {cpu}:\n    time.monotonic = time.process_time\n"
_WORKER = """
import sys
import palmette
out, strategy, width, skip, count = sys.argv[1:]
with palmette.Searcher(policy="seedling", strategy=strategy, width=int(width)) as searcher:
    searcher.search(palmette.load_task("ladder", questions=2, skip=5000))
    print("ready", flush=True)
    sys.stdin.readline()
    searcher.search(palmette.load_task("ladder", questions=int(count), skip=int(skip)), out=out)
"""
_COMMAND = "import sys\nfrom palmette.__main__ import main\nmain()\n"


def real_search(options: argparse.Namespace, folder: Path, skip: int, count: int, workers: int) -> list[Recorded]:
    """Search questions with so many processes, each a part of them; return what each recorded.

    They search at the same time, or one after the other where they count CPU seconds.
    """
    shares = [count // workers + (place < count % workers) for place in range(workers)]
    began, processes, folders = skip, [], []
    for place, share in enumerate(shares):
        folders.append(folder / f"part{place}")
        told = [str(folders[-1]), options.strategy, str(options.width), str(began), str(share)]
        processes.append(_start(options, _WORKER, told))
        began += share
        if options.clock == "cpu":
            _go(processes)
            processes = []
    _go(processes)
    return [read_run(each) for each in folders]


def _go(processes: "list[subprocess.Popen[str]]") -> None:
    """Wait until all workers have loaded their models, let them search, wait until they have ended."""
    for process in processes:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, "a worker has ended before it was ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _finish(process)


def ray_search(options: argparse.Namespace, folder: Path, skip: int, count: int, workers: int) -> list[Recorded]:
    """Search questions with Ray's workers; return what the run recorded."""
    told = ["search", "--strategy", options.strategy, "--width", str(options.width), "--questions", str(count)]
    told += ["--set", f"task.skip={skip}", "--set", f"scale.workers={workers}", "--out", str(folder)]
    _finish(_start(options, _COMMAND, told))
    return [read_run(folder)]


def check_search(options: argparse.Namespace, folder: Path, cores: int) -> None:
    """Print seconds per question, real and simulated."""
    [measured] = real_search(options, folder / "costs", SKIPPED, options.questions, 1)
    costs = measured_costs(measured)
    print(f"costs: {costs}\n", flush=True)
    print("| workers | real s | s a question | same | ratio | drawn | ratio |\n|---:|---:|---:|---:|---:|---:|---:|")
    run = ray_search if options.by == "ray" else real_search
    for workers in options.workers:
        parts = run(options, folder / f"real{workers}", 0, options.questions, workers)
        real = max(session.seconds for part in parts for session in part.sessions)
        same = _simulated(parts, costs, workers, cores if options.clock == "wall" else workers)
        drawn = statistics.fmean(
            _simulated([replace(part, questions=tuple(draw(measured.questions, len(part.questions), seed)))
                        for part in parts], costs, workers, cores if options.clock == "wall" else workers)
            for seed in range(8)
        )  # fmt: skip
        print(
            f"| {workers} | {real:.2f} | {real / options.questions:.4f} | {same:.2f} | {same / real:.3f} | "
            f"{drawn:.2f} | {drawn / real:.3f} |",
            flush=True,
        )


def _simulated(parts: list[Recorded], costs: Costs, workers: int, devices: int) -> float:
    """Return the seconds of a simulated run; questions of several parts stay with their workers."""
    questions = [question for part in parts for question in part.questions]
    owners = [place for place, part in enumerate(parts) for _ in part.questions] if len(parts) > 1 else None
    setup = replace(setup_of(parts[0]), nodes=1, workers=workers, devices=devices)
    return simulate(questions, setup, costs, owners=owners).seconds


def check_updates(options: argparse.Namespace, folder: Path) -> None:
    """Print seconds per update, real and simulated: costs of learning are those of every other update."""
    rollouts = ["--strategy", "best_of_n", "--width", "8", "--set", "search.total_tokens=160"]
    search, trained = folder / "search", folder / "train"
    told = ["search", "--reward", "none", *rollouts, "--questions", "48", "--out", str(search)]
    _finish(_start(options, _COMMAND, told))
    told = ["train", *rollouts[2:], "--updates", str(options.updates), "--out", str(trained)]
    _finish(_start(options, _COMMAND, [*told, "--set", "train.questions=16"]))
    measured = read_run(search)
    updates = read_run(trained).updates
    real = statistics.fmean(sum(update.seconds.values()) for update in updates[1::2])
    learner = read_learner(trained, measured.config, ranks=1)
    learner = with_updates(replace(learner, seconds=learner.seconds[::2]), 50, 0, 1)
    questions = draw(measured.questions, 50 * learner.questions, 0)
    found = simulate(questions, setup_of(measured), measured_costs(measured), learner=learner).per_update
    assert found is not None
    print(f"\n| workers | real s an update | simulated | ratio |\n|---:|---:|---:|---:|\n"
          f"| 1 | {real:.2f} | {found:.2f} | {found / real:.3f} |")  # fmt: skip


def _start(options: argparse.Namespace, script: str, arguments: list[str]) -> "subprocess.Popen[str]":
    code = _CLOCKED.format(cpu=options.clock == "cpu") + script
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _finish(process: "subprocess.Popen[str]") -> None:
    process.communicate()
    assert process.returncode == 0, "a run has failed"


def main() -> None:
    """Make the runs and print both tables as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 4])
    parser.add_argument("--questions", type=int, default=96)
    parser.add_argument("--strategy", default="rebase")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--updates", type=int, default=8, help="0 leaves training out")
    parser.add_argument("--with", dest="by", choices=("processes", "ray"), default="processes")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"cores": cores, **vars(options)}))
    with tempfile.TemporaryDirectory() as folder:
        check_search(options, Path(folder), cores)
        if options.updates:
            check_updates(options, Path(folder))


if __name__ == "__main__":
    main()
