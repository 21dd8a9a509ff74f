"""Simulated against real runs with 1, 2 and 4 workers of one thread each: seconds per question, seconds per update.

    python -m benchmarks.simulate_check
    python -m benchmarks.simulate_check --with ray
    python -m benchmarks.simulate_check --clock cpu

Nothing is fitted to what is predicted: costs come from one worker's searches of other questions, and how much two
workers slow each other down from searches of others still. Workers are processes that each search their part of the
questions, all from the same moment on, or with `--with ray` those of `scale.workers`. "same" simulates the trees that
the real run had, "drawn" draws questions from those that costs were measured on, as `palmette simulate` does. Where
there are more workers than cores, they share them. All searches are made `--times` times in turn, so that a machine
that is faster at one time than at another is so for all of them.

An update takes its rollouts and its learning. Workers roll out the questions of one update after the other and wait for
each other in between; learning is that of a training run in one process, whose odd updates are compared and whose even
ones are given to the simulation. The first row is that training run itself.

`--clock cpu` is for a machine that others use: processes count CPU seconds in place of those of the wall, and the real
number is that of the worker with the most; they run one after the other. It says nothing of workers that share cores.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.simulate_runs import Part, command, groups
from palmette.simulate.costs import Costs
from palmette.simulate.measured import measured_contention, measured_dispatch, read_learner, with_updates
from palmette.simulate.scaling import draw, measured_costs, setup_of
from palmette.simulate.setup import Setup
from palmette.simulate.simulation import simulate
from palmette.simulate.work import Question, joined, read_run

COSTS, BESIDE = "costs", "beside"
SKIPPED = {COSTS: 1000, BESIDE: 3000}
"""The questions that something is measured on come after so many others."""
ROLLOUTS = {"search.strategy": "best_of_n", "search.width": 8, "search.total_tokens": 160, "reward.model": None}
"""What the rollouts of the training run are like."""
EACH = 16
"""Questions of an update."""


def real_searches(options: argparse.Namespace, folder: Path, cores: int) -> dict[str, list[Part]]:
    """Make all searches, in turn; return what they recorded by number of workers, or by what is measured."""
    cpu = options.clock == "cpu"
    sizes = {COSTS: 1, **({} if cpu or cores < 2 else {BESIDE: 2}), **{str(count): count for count in options.workers}}
    settings = {"search.strategy": options.strategy, "search.width": options.width}
    runs: dict[str, list[Part]] = {name: [] for name in sizes}
    with groups(settings, {} if options.by == "ray" else sizes, cpu=cpu) as started:
        for turn in range(options.times):
            for name, workers in sizes.items():
                out, skip = folder / f"{name}-{turn}", SKIPPED.get(name, 0) + 200 * turn
                if started:
                    runs[name].append(started[name].search(out, skip, options.questions))
                    continue
                told = {**settings, "task.skip": skip, "scale.workers": workers}
                asked = ["search", "--questions", str(options.questions), "--out", str(out)]
                command([*asked, *(f"--set={key}={value}" for key, value in told.items())], cpu=cpu)
                runs[name].append([read_run(out)])
    return runs


def check_search(options: argparse.Namespace, folder: Path, cores: int) -> float:
    """Print seconds per question, real and simulated; return by how much workers slow each other down."""
    runs = real_searches(options, folder, cores)
    alone = [run for part in runs[COSTS] for run in part]
    measured, costs, contention = joined(alone), measured_costs(*alone), 0.0
    if BESIDE in runs:
        contention = measured_contention(measured, [run for part in runs[BESIDE] for run in part], 2)
    dispatch = measured_dispatch(measured) or 0.0
    print(f"costs: {costs}\ncontention: {contention:.3f}, dispatch: {dispatch * 1e3:.2f} ms a question\n")
    print("| workers | real s a question | of each run | same | ratio | drawn | ratio |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    for workers in options.workers:
        parts = runs[str(workers)]
        setup = _setup(options, setup_of(measured), workers, cores, contention)
        setup = replace(setup, dispatch_seconds=dispatch)
        real = [_longest(part) / options.questions for part in parts]
        same = [_simulated([run.questions for run in part], setup, costs) for part in parts]
        drawn = [
            _simulated([draw(measured.questions, len(run.questions), 100 * seed + place)
                        for place, run in enumerate(part)], setup, costs)
            for part in parts for seed in range(8)
        ]  # fmt: skip
        mean, alike, other = (statistics.fmean(values) for values in (real, same, drawn))
        each = ", ".join(f"{own:.4f}" for own in real)
        told = f"| {workers} | {mean:.4f} | {each} | {alike:.4f} | {alike / mean:.3f} |"
        print(f"{told} {other:.4f} | {other / mean:.3f} |", flush=True)
    return contention


def _setup(options: argparse.Namespace, setup: Setup, workers: int, cores: int, contention: float) -> Setup:
    devices = cores if options.clock == "wall" else workers
    return replace(setup, workers=workers, devices=devices, contention=contention)


def _longest(part: Part) -> float:
    return max(session.seconds for run in part for session in run.sessions)


def _simulated(parts: Sequence[Sequence[Question]], setup: Setup, costs: Costs) -> float:
    """Return the seconds per question of a simulated run; questions of several parts stay with their workers."""
    questions = [question for part in parts for question in part]
    owners = [place for place, part in enumerate(parts) for _ in part] if len(parts) > 1 else None
    return simulate(questions, setup, costs, owners=owners).seconds / len(questions)


def check_updates(options: argparse.Namespace, folder: Path, cores: int, contention: float) -> None:
    """Print seconds per update, real and simulated."""
    cpu, rounds = options.clock == "cpu", options.updates // 2
    told = [f"--set={key}={'null' if value is None else value}" for key, value in ROLLOUTS.items()]
    told += ["--updates", str(options.updates), f"--set=train.questions={EACH}", "--out", str(folder / "train")]
    command(["train", *told], cpu=cpu)
    sizes = {COSTS: 1, **{str(count): count for count in options.workers}}
    runs: dict[str, list[Part]] = {name: [] for name in sizes}
    with groups(ROLLOUTS, sizes, cpu=cpu) as started:
        for turn in range(rounds):
            for name, group in started.items():
                skip = SKIPPED.get(name, 0) + 100 * turn
                runs[name].append(group.search(folder / f"rollout-{name}-{turn}", skip, EACH))
    alone = [run for part in runs[COSTS] for run in part]
    measured, costs = joined(alone), measured_costs(*alone)
    learner = read_learner(folder / "train", measured.config, ranks=1)
    learned = statistics.fmean(learner.seconds[1::2])
    learner = with_updates(replace(learner, seconds=learner.seconds[::2]), 50, 0, 1)
    questions = draw(measured.questions, 50 * EACH, 0)
    whole = statistics.fmean(sum(update.seconds.values()) for update in read_run(folder / "train").updates[1::2])
    rows = [("1, the training run", whole, 1)]
    rows += [
        (str(workers), statistics.fmean(map(_longest, runs[str(workers)])) + learned, workers)
        for workers in options.workers
    ]
    print(f"\ncosts: {costs}\n\n| workers | real s an update | of it rollouts | simulated | ratio |")
    print("|---:|---:|---:|---:|---:|")
    for name, real, workers in rows:
        setup = _setup(options, setup_of(measured), workers, cores, contention)
        found = simulate(questions, setup, costs, learner=learner).per_update
        assert found is not None
        print(f"| {name} | {real:.3f} | {real - learned:.3f} | {found:.3f} | {found / real:.3f} |", flush=True)


def main() -> None:
    """Make the runs and print both tables as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 4])
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--strategy", default="rebase")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--updates", type=int, default=8, help="0 leaves training out")
    parser.add_argument("--with", dest="by", choices=("processes", "ray"), default="processes")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"cores": cores, **vars(options)}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        contention = check_search(options, Path(folder), cores)
        if options.updates:
            check_updates(options, Path(folder), cores, contention)


if __name__ == "__main__":
    main()
