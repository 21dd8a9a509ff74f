"""The same search alone, beside processes that keep a core busy, and beside copies of itself: seconds and fair share.

python -m benchmarks.busy

Sides, in turn: `chosen` is what a user gets; `passive` has all threads, waiting asleep at once; `spinning` has all
threads, waiting as OpenMP does by itself; `before` is another source tree (`--before OTHER/src`), nothing set.

Fair share: the cores are shared out equally among all processes, none getting more than it can use: a busy loop can use
one core, a search all of them. A search whose share is s cores should take the seconds that it takes alone with n
threads, times n / s, where n is s rounded down, at least 1. The number told is how many times as long it took.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parents[1] / "src"
CORES = len(os.sched_getaffinity(0))
ALL_THREADS = {"OMP_NUM_THREADS": str(CORES)}
SIDES: dict[str, dict[str, str]] = {
    "chosen": {},
    "passive": {**ALL_THREADS, "OMP_WAIT_POLICY": "PASSIVE"},
    "spinning": {**ALL_THREADS, "GOMP_SPINCOUNT": "300000"},
    "before": {},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "smollm2": {
        "policy": "smollm2-135m", "reward": None, "strategy": "best_of_n", "width": 16,
        "total_tokens": 24, "step_tokens": 24,
    },
    "seedling": {"strategy": "ets", "width": 32},
}  # fmt: skip
TASKS = {"smollm2": ("rg:chain_sum", 1), "seedling": ("ladder", 3)}


class Case(NamedTuple):
    """What a search runs beside."""

    loops: int
    copies: int

    @property
    def name(self) -> str:
        """The case in the table and on the command line."""
        return f"{self.loops}-loops" if self.loops else f"{self.copies}-copies" if self.copies else "alone"


CASES = [Case(0, 0), Case(1, 0), Case(2, 0), Case(0, 1), Case(0, 3)]


def fair_cores(cores: int, case: Case) -> float:
    """Return the cores that a search gets where all processes share equally and a busy loop takes at most one."""
    equal = cores / (1 + case.loops + case.copies)
    if equal <= 1:
        return equal
    return (cores - case.loops) / (1 + case.copies)


def serve(search: str) -> None:
    """Search once for each line of stdin; print the seconds."""
    import palmette

    name, count = TASKS[search]
    questions = palmette.load_task(name, questions=count, seed=11)
    with palmette.Searcher(seed=11, **SEARCHES[search]) as searcher:
        searcher.search(questions)
        print("ready", flush=True)
        for _ in sys.stdin:
            begun, cpu_begun = time.perf_counter(), time.process_time()
            searcher.search(questions)
            print(json.dumps([time.perf_counter() - begun, time.process_time() - cpu_begun]), flush=True)


class Searching:
    """A process that searches whenever it is asked to."""

    def __init__(self, search: str, source: Path, environment: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.busy", "--serve", search],
            env={**kept, **environment, "PYTHONPATH": str(source)}, cwd=HERE.parent,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert self._process.stdout is not None and self._process.stdin is not None
        self._replies, self._asks = self._process.stdout, self._process.stdin
        if self._replies.readline().strip() != "ready":
            raise RuntimeError(f"the search of {source} did not start")

    def ask(self, times: int = 1) -> None:
        """Begin a search, or several one after the other."""
        self._asks.write("\n" * times)

    def seconds(self) -> float:
        """Wait for the end of a search; return its seconds."""
        return float(json.loads(self._replies.readline())[0])

    def stop(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        self._replies.close()
        self._asks.close()


@contextmanager
def searching(search: str, source: Path, environment: dict[str, str]) -> Iterator[Searching]:
    """Start a process that searches; end it afterwards."""
    process = Searching(search, source, environment)
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def busy_loop() -> Iterator[None]:
    """Keep a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(search: str, source: Path, environment: dict[str, str], case: Case, repeats: int) -> float:
    """Return the median seconds of a search beside what the case has."""
    with ExitStack() as stack:
        copies = [stack.enter_context(searching(search, source, environment)) for _ in range(case.copies)]
        ours = stack.enter_context(searching(search, source, environment))
        for _ in range(case.loops):
            stack.enter_context(busy_loop())
        for copy in copies:
            copy.ask(1000)  # More than it can do: it is ended while it searches.
        found = []
        for _ in range(repeats):
            ours.ask()
            found.append(ours.seconds())
    return statistics.median(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen cases on each side in turn; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES), choices=list(SEARCHES))
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--sides", nargs="*", default=["chosen", "passive", "spinning"], choices=list(SIDES))
    parser.add_argument("--before", type=Path, help="the src folder of a commit to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve(chosen.serve)
        return
    sides = [side for side in chosen.sides if side != "before"] + (["before"] if chosen.before else [])
    cases = [case for case in CASES if case.name in chosen.cases]
    for search in chosen.searches:
        alone: dict[int, float] = {}
        for case in cases:
            share = fair_cores(CORES, case)
            threads = max(1, int(share))
            if threads not in alone:
                few = {"OMP_NUM_THREADS": str(threads), **({} if threads == 1 else {"GOMP_SPINCOUNT": "300000"})}
                alone[threads] = measure(search, HERE, few, Case(0, 0), chosen.repeats)
                print(f"{search}, alone with {threads} threads: {alone[threads]:.2f} s", flush=True)
            fair = alone[threads] * threads / share
            for side in sides:
                source = chosen.before.resolve() if side == "before" else HERE
                seconds = measure(search, source, SIDES[side], case, chosen.repeats)
                print(
                    f"{search} {case.name}, {side}: {seconds:.2f} s, {seconds / fair:.2f} times the fair share "
                    f"({fair:.2f} s with {share:.2f} cores)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
