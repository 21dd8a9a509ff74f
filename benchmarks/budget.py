"""ETS within a budget against REBASE without one: metered peaks, accuracy. `python -m benchmarks.budget`.

The budgets are multiples of what REBASE held at its peak, all questions in flight together. A budget is divided equally
among them, and ETS keeps a place for every next step as if those shared nothing: it needs more than it holds later.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from palmette import Searcher, Task, load_task
from palmette.event_log import read_events
from palmette.events import Session
from palmette.search.summary import Summary, summarize
from palmette.units import format_bytes


def searched(folder: Path, task: Task, strategy: str, **search: Any) -> tuple[Summary, Session]:
    """Run one search; return what it found and what it held."""
    with Searcher(strategy=strategy, **search) as searcher:
        searcher.search(task, out=folder)
    events = list(read_events(folder))
    return summarize(events), next(event for event in events if isinstance(event, Session))


def main() -> None:
    """Print one line for REBASE and one for each budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--times", type=int, nargs="+", default=[8, 4, 2])
    options = parser.parse_args()
    task, width = load_task("ladder", questions=options.questions), options.width
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        free, held = searched(folder / "rebase", task, "rebase", width=width)
        token = held.kv_bytes_per_token
        print(
            f"rebase: peak {held.peak_kv_tokens} KV tokens ({format_bytes(held.peak_kv_tokens * token)}), mean "
            f"{free.mean_kv_tokens:.0f} a question, weighted {free.votes['weighted'].share:.3f}, {free.seconds:.0f} s"
        )
        for times in options.times:
            budget = held.peak_kv_tokens * token * times
            kept, within = searched(
                folder / f"ets-{times}", task, "ets", width=width, kv_budget=budget, first_step_tokens=8
            )
            peak = within.peak_kv_tokens * token
            assert peak <= budget, f"metered {peak} bytes, the budget is {budget}"
            print(
                f"ets in {times} times that: budget {format_bytes(budget)}, peak {format_bytes(peak)} "
                f"({peak / budget:.1%}), "
                f"mean {kept.mean_kv_tokens:.0f} a question, weighted {kept.votes['weighted'].share:.3f}, "
                f"{kept.out_of_room} of {kept.questions} trees out of room, {kept.seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
