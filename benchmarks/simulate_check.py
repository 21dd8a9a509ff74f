"""Simulated against real runs with 1, 2 and 4 workers of one thread each: seconds per question, seconds per update.

    python -m benchmarks.simulate_check
    python -m benchmarks.simulate_check --with ray
    python -m benchmarks.simulate_check --clock cpu

Nothing is fitted to what is predicted: costs come from one worker's run over other questions, and how much two workers
slow each other down from another run over others still. Workers are processes that each search their part of the
questions, all from the same moment on, or with `--with ray` those of `scale.workers`. "same" simulates the trees that
the real run had, "drawn" draws questions from the run that costs were measured on, as `palmette simulate` does. Where
there are more workers than cores, they share them. All runs are made `--times` times in turn, so that a machine that is
faster at one time than at another is so for all of them.

An update takes its rollouts and its learning. Workers roll out the questions of one update after the other and wait for
each other in between; learning is that of a training run in one process, whose odd updates are compared and whose even
ones are given to the simulation.

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palmette.simulate.costs import Costs
from palmette.simulate.measured import measured_contention, measured_dispatch, read_learner, with_updates
from palmette.simulate.scaling import draw, measured_costs, setup_of
from palmette.simulate.setup import Setup
from palmette.simulate.simulation import simulate
from palmette.simulate.work import Question, Recorded, joined, read_run

SKIPPED = (1000, 3000)
"""The questions that costs are measured on come after so many others, and those that contention is measured on."""
ROLLOUTS = {"search.strategy": "best_of_n", "search.width": 8, "search.total_tokens": 160, "reward.model": None}
"""What the rollouts of the training run are like."""
EACH = 16
"""Questions of an update."""

_CLOCKED = "import time\nif {cpu}:\n    time.monotonic = time.process_time\n"
_WORKER = """
import json, sys
import palmette
out, settings, skip, count, rounds = sys.argv[1:]
with palmette.Searcher(settings=json.loads(settings)) as searcher:
    searcher.search(palmette.load_task("ladder", questions=2, skip=5000))
    print("ready", flush=True)
    for number in range(int(rounds)):
        sys.stdin.readline()
        task = palmette.load_task("ladder", questions=int(count), skip=int(skip) + number * 100)
        searcher.search(task, out=f"{out}-{number}")
        print("done", flush=True)
"""
_COMMAND = "import sys\nfrom palmette.__main__ import main\nmain()\n"

Part = list[Recorded]
"""What each of several workers recorded."""


def real_rounds(
    options: argparse.Namespace,
    settings: dict[str, Any],
    folder: Path,
    skip: int,
    count: int,
    workers: int,
    rounds: int,
) -> list[Part]:
    """Search so many questions in each round with so many processes; return what each recorded, by round.

    In a round they search at the same time, or one after the other where they count CPU seconds.
    """
    shares = [count // workers + (place < count % workers) for place in range(workers)]
    processes = []
    for place, share in enumerate(shares):
        told = [str(folder / f"part{place}"), json.dumps(settings), str(skip + sum(shares[:place])), str(share)]
        processes.append(_start(options, _WORKER, [*told, str(rounds)]))
    for process in processes:
        _hear(process, "ready")
    for _ in range(rounds):
        together = [[process] for process in processes] if options.clock == "cpu" else [processes]
        for group in together:
            for process in group:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in group:
                _hear(process, "done")
    for process in processes:
        _finish(process)
    return [[read_run(folder / f"part{place}-{number}") for place in range(workers)] for number in range(rounds)]


def searched(options: argparse.Namespace, folder: Path, skip: int, workers: int) -> Part:
    """Search questions with so many workers, by processes or by Ray; return what they recorded."""
    settings = {"search.strategy": options.strategy, "search.width": options.width}
    if options.by == "processes":
        return real_rounds(options, settings, folder, skip, options.questions, workers, 1)[0]
    told = ["search", "--questions", str(options.questions), "--out", str(folder)]
    settings |= {"task.skip": skip, "scale.workers": workers}
    _finish(_start(options, _COMMAND, [*told, *(f"--set={key}={value}" for key, value in settings.items())]))
    return [read_run(folder)]


def check_search(options: argparse.Namespace, folder: Path, cores: int) -> float:
    """Print seconds per question, real and simulated; return by how much workers slow each other down."""
    beside = min(2, cores)
    runs: dict[str, list[Part]] = {}
    for turn in range(options.times):
        for workers in (*options.workers, 0, -1):
            if workers == -1 and (options.clock == "cpu" or beside < 2):
                continue
            skip, count = (0, workers) if workers > 0 else (SKIPPED[workers], beside if workers else 1)
            done = searched(options, folder / f"{workers}-{turn}", skip + 200 * turn, count)
            runs.setdefault(str(workers), []).append(done)
    lone = [run for part in runs["0"] for run in part]
    measured, costs, contention = joined(lone), measured_costs(*lone), 0.0
    if "-1" in runs:
        contention = measured_contention(measured, [run for part in runs["-1"] for run in part], beside)
    dispatch = measured_dispatch(measured) or 0.0
    print(f"costs: {costs}\ncontention: {contention:.3f}, dispatch: {dispatch * 1e3:.2f} ms a question\n")
    print("| workers | real s a question | of each run | same | ratio | drawn | ratio |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    for workers in options.workers:
        parts = runs[str(workers)]
        devices = cores if options.clock == "wall" else workers
        setup = replace(setup_of(measured), workers=workers, devices=devices, contention=contention)
        setup = replace(setup, dispatch_seconds=dispatch)
        real = [_longest(part) / options.questions for part in parts]
        same = [_simulated([run.questions for run in part], setup, costs) for part in parts]
        shares = [_counts(part, workers) for part in parts]
        drawn = [_drawn(measured, counts, setup, costs) for counts in shares]
        mean, alike, lots = (statistics.fmean(values) for values in (real, same, drawn))
        each = ", ".join(f"{own:.4f}" for own in real)
        told = f"| {workers} | {mean:.4f} | {each} | {alike:.4f} | {alike / mean:.3f} |"
        print(f"{told} {lots:.4f} | {lots / mean:.3f} |", flush=True)
    return contention


def _longest(part: Part) -> float:
    return max(session.seconds for run in part for session in run.sessions)


def _counts(part: Part, workers: int) -> list[int]:
    return [len(run.questions) for run in part] if len(part) == workers else [sum(len(run.questions) for run in part)]


def _drawn(measured: Recorded, counts: list[int], setup: Setup, costs: Costs) -> float:
    """Return the seconds per question of questions drawn from another run, the mean of 8 draws."""
    return statistics.fmean(
        _simulated([draw(measured.questions, count, 100 * seed + place) for place, count in enumerate(counts)],
                   setup, costs)
        for seed in range(8)
    )  # fmt: skip


def _simulated(parts: Sequence[Sequence[Question]], setup: Setup, costs: Costs) -> float:
    """Return the seconds per question of a simulated run; questions of several parts stay with their workers."""
    questions = [question for part in parts for question in part]
    owners = [place for place, part in enumerate(parts) for _ in part] if len(parts) > 1 else None
    return simulate(questions, setup, costs, owners=owners).seconds / len(questions)


def check_updates(options: argparse.Namespace, folder: Path, cores: int, contention: float) -> None:
    """Print seconds per update, real and simulated."""
    told = [f"--set={key}={'null' if value is None else value}" for key, value in ROLLOUTS.items()]
    told += ["--updates", str(options.updates), f"--set=train.questions={EACH}", "--out", str(folder / "train")]
    _finish(_start(options, _COMMAND, ["train", *told]))
    updates = read_run(folder / "train").updates
    rounds = options.updates // 2
    [alone] = zip(*real_rounds(options, ROLLOUTS, folder / "costs", SKIPPED[0], EACH, 1, rounds), strict=True)
    measured = joined(alone)
    costs = measured_costs(*alone)
    learner = read_learner(folder / "train", measured.config, ranks=1)
    learned = statistics.fmean(learner.seconds[1::2])
    learner = with_updates(replace(learner, seconds=learner.seconds[::2]), 50, 0, 1)
    questions = draw(measured.questions, 50 * EACH, 0)
    whole = statistics.fmean(sum(update.seconds.values()) for update in updates[1::2])
    print("\n| workers | real s an update | of it rollouts | simulated | ratio |\n|---:|---:|---:|---:|---:|")
    rows = [("1, one process", whole, whole - learned, 1)]
    for workers in options.workers:
        done = real_rounds(options, ROLLOUTS, folder / f"rolled{workers}", 0, EACH, workers, rounds)
        rolled = statistics.fmean(map(_longest, done))
        rows.append((str(workers), rolled + learned, rolled, workers))
    for name, real, rolled, workers in rows:
        devices = cores if options.clock == "wall" else workers
        setup = replace(setup_of(measured), workers=workers, devices=devices, contention=contention)
        found = simulate(questions, setup, costs, learner=learner).per_update
        assert found is not None
        print(f"| {name} | {real:.3f} | {rolled:.3f} | {found:.3f} | {found / real:.3f} |", flush=True)


def _start(options: argparse.Namespace, script: str, arguments: list[str]) -> "subprocess.Popen[str]":
    code = _CLOCKED.format(cpu=options.clock == "cpu") + script
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _hear(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"{word}\n":
        assert line, "a worker has ended too early"


def _finish(process: "subprocess.Popen[str]") -> None:
    process.communicate()
    assert process.returncode == 0, "a run has failed"


def main() -> None:
    """Make the runs and print both tables as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 4])
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--strategy", default="rebase")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--updates", type=int, default=8, help="0 leaves training out")
    parser.add_argument("--with", dest="by", choices=("processes", "ray"), default="processes")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"cores": cores, **vars(options)}))
    with tempfile.TemporaryDirectory() as folder:
        contention = check_search(options, Path(folder), cores)
        if options.updates:
            check_updates(options, Path(folder), cores, contention)


if __name__ == "__main__":
    main()
