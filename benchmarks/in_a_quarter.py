"""Questions per second in a KV pool of a part of what REBASE holds at its peak, REBASE at its best beside the others.

    python -m benchmarks.in_a_quarter --policy POLICY --reward REWARD --width 64

The pool holds so many tokens and no more: what does not fit is evicted and computed again when needed. Fewer questions
at once need less room, so REBASE, and every strategy, is run with several numbers of them, and its fastest counts.
Strategies take turns. One may have settings of its own: `ets:lambda_diversity=0`.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.pupil_search import parsed, right, with_settings
from palmette import Searcher, SearchResult, Task, load_task
from palmette.event_log import read_events
from palmette.events import Session
from palmette.run.parts import Parts, load_backend


@dataclass(frozen=True)
class Pace:
    """What came of the questions, and how fast."""

    results: list[SearchResult]
    seconds: float
    in_flight: int

    @property
    def questions_per_second(self) -> float:
        """Questions of a second."""
        return len(self.results) / self.seconds

    def row(self, strategy: str, rebase: "Pace") -> str:
        """Return a row of the table."""
        tokens = sum(result.tokens for result in self.results)
        votes = right(self.results)
        return (
            f"| {strategy} | {self.in_flight} | {tokens / self.seconds:,.0f} | {self.questions_per_second:.2f} "
            f"| {self.questions_per_second / rebase.questions_per_second:.2f} | {tokens / len(votes):,.0f} "
            f"| {sum(votes) / len(votes):.3f} |"
        )


def searched(parts: Parts | None, strategy: str, in_flight: int, task: Task, options: argparse.Namespace) -> Pace:
    """Search all questions."""
    with searcher_of(strategy, in_flight, options, parts) as searcher:
        began = time.perf_counter()
        results = searcher.search(task)
        return Pace(results, time.perf_counter() - began, in_flight)


def searcher_of(strategy: str, in_flight: int, options: argparse.Namespace, parts: Parts | None = None) -> Searcher:
    """Return a searcher with the models given, or one that loads them."""
    name, own = with_settings(strategy)
    settings: dict[str, Any] = {
        "policy.model": options.policy, "reward.model": options.reward, "task.name": "words",
        "search.questions_in_flight": in_flight, "search.total_tokens": options.total_tokens,
        **parsed(options.set), **own,
    }  # fmt: skip
    return Searcher(strategy=name, width=options.width, settings=settings, parts=parts)


def most_held(task: Task, options: argparse.Namespace) -> int:
    """Return the KV tokens that REBASE holds at its peak for all questions in flight, without a limit."""
    with tempfile.TemporaryDirectory() as folder:
        with searcher_of("rebase", max(options.in_flight), options) as searcher:
            searcher.search(task, out=Path(folder) / "run")
        events = read_events(Path(folder) / "run")
        return max(event.peak_kv_tokens for event in events if isinstance(event, Session))


def main() -> None:
    """Print the pool and a row for the fastest of each strategy, one table for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--reward", required=True)
    parser.add_argument("--strategies", nargs="+", default=["rebase", "ets", "espalier"])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--plain", action="store_true", help="one wording for each kind of fact and question")
    parser.add_argument("--grade", type=int, default=2)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--part", type=float, default=0.25, help="of REBASE's peak")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--total-tokens", type=int, default=600)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    task = load_task(
        "words", questions=options.questions, split="test", grade=options.grade, generator={"plain": options.plain}
    )
    peak = most_held(task, options)
    pool = round(peak * options.part)
    print(
        f"REBASE holds {peak:,} tokens at its peak, {max(options.in_flight)} questions at once; the pool has {pool:,}"
    )
    with searcher_of("ets", max(options.in_flight), options) as searcher:
        parts = searcher.load()
        limited = load_backend(searcher.config.policy, pool * parts.backend.kv_bytes_per_token)
        parts = replace(parts, backend=limited)
        for _ in range(options.rounds):
            print(
                "\n| strategy | in flight | tokens/s | questions/s | times REBASE | tokens of a question | weighted |"
            )
            print("|---|---:|---:|---:|---:|---:|---:|")
            fastest: dict[str, Pace] = {}
            for strategy in options.strategies:
                paces = [searched(parts, strategy, count, task, options) for count in options.in_flight]
                fastest[strategy] = max(paces, key=lambda pace: pace.questions_per_second)
                print(fastest[strategy].row(strategy, fastest["rebase"]), flush=True)


if __name__ == "__main__":
    main()
