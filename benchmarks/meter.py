"""What metering costs: processor time of a search with and without it. `python -m benchmarks.meter [ROUNDS]`."""

import sys
import tempfile
import time

from palmette import Searcher
from palmette.config import check_config
from palmette.memory import host
from palmette.memory.heap import heap_in_use
from palmette.memory.meter import Meter
from palmette.run.parts import build_parts
from palmette.tasks.load import load_task

VALUES = {"search": {"strategy": "rebase", "width": 64}, "task": {"questions": 8}}


def each(work: object, times: int = 2000) -> float:
    """Return the microseconds of one call."""
    assert callable(work)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times * 1e6


def main() -> None:
    """Print the cost of the parts, then that of whole searches at several rates of sampling, taken in turns."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    meter = Meter()

    def phase() -> None:
        with meter.phase("empty"):
            pass

    print(f"one sample {each(host.resident_bytes):.1f} us, one phase {each(phase):.1f} us, ", end="")
    print(f"the allocator's view {each(heap_in_use, 20):.0f} us (once a timeline)")
    for rate in (0.1, 0.01):
        with Meter(sample_seconds=rate):
            begun = time.process_time()
            time.sleep(5)
            share = (time.process_time() - begun) / 5
            print(f"a sample every {rate:g} s: {share:.3%} of a processor with nothing else running")
    base = check_config(VALUES, {}, "benchmark")
    parts, task = build_parts(base), load_task(base.task)
    spent: dict[float, list[float]] = {3600.0: [], 0.1: [], 0.01: []}
    for number in range(rounds + 1):
        order = [*spent][number % 3 :] + [*spent][: number % 3]  # Nobody is always first.
        for rate in order:
            config = check_config({**VALUES, "memory": {"sample_seconds": rate}}, {}, "benchmark")
            with tempfile.TemporaryDirectory() as folder:
                begun = time.process_time()
                with Searcher(config=config, parts=parts) as searcher:
                    searcher.search(task, out=folder)
                spent[rate].append(time.process_time() - begun)
    print("| a sample every | processor seconds, least of all rounds | against none |\n|---|---:|---:|")
    for rate, seconds in spent.items():
        change = min(seconds) / min(spent[3600.0]) - 1
        print(f"| {'none' if rate > 60 else f'{rate:g} s'} | {min(seconds):.3f} | {change:+.1%} |")


if __name__ == "__main__":
    main()
