"""Strategies on deep trees of `words`, with a policy and a judge that are programs (`benchmarks.pupil`), as a table.

    python -m benchmarks.pupil_search --widths 16 64 256 --questions 100

It tells how strategies compare where steps differ in words and order and the judge errs; whether a model behaves so has
to be shown with a model. Every strategy gets the same questions. Differences are paired, with intervals by bootstrap.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from benchmarks.pupil import Bag, Judge, Pupil
from palmette import Searcher, SearchResult, load_task
from palmette.run.parts import Parts

STRATEGIES = ("best_of_n", "rebase", "ets", "espalier", "beam", "dvts")


def searched(strategy: str, width: int, seed: int, options: argparse.Namespace) -> list[SearchResult]:
    """Search the questions of a seed."""
    task = load_task(
        "words", questions=options.questions, split="test", seed=seed, grade=options.grade, prompt="{question}"
    )
    parts = Parts(Pupil(options.errs, options.alike), Judge(options.noise), Bag())
    settings = parsed(options.set)
    with Searcher(
        strategy=strategy, seed=seed, width=width, total_tokens=2000, step_tokens=60, settings=settings, parts=parts
    ) as searcher:
        return searcher.search(task)


def parsed(pairs: Iterable[str]) -> dict[str, Any]:
    """Return settings that were given as KEY=VALUE."""
    return {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in pairs)}


def with_settings(strategy: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a strategy, and the settings behind it: `ets:lambda_diversity=0,lambda_kv=2`."""
    name, *own = strategy.replace(":", ",").split(",")
    return name, parsed(f"search.{pair}" for pair in own)


def right(results: Sequence[SearchResult], vote: str = "weighted") -> list[int]:
    """Return 1 for each question that a vote answers right, else 0."""
    return [int(result.choices[vote].outcome == "correct") for result in results]


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of a mean, by bootstrap over questions."""
    generator = random.Random(0)
    means = sorted(statistics.fmean(generator.choices(differences, k=len(differences))) for _ in range(1000))
    return means[25], means[974]


def main() -> None:
    """Print one table for each width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--grade", type=int, default=4)
    parser.add_argument("--errs", type=float, default=0.18, help="mean rate of mistakes in a line")
    parser.add_argument("--alike", type=float, default=0.7, help="how often a mistake is the same in all branches")
    parser.add_argument("--noise", type=float, default=1.3, help="deviation of the judge's error, for a signal of 1")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    for width in options.widths:
        print(f"\nwidth {width}, {len(options.seeds)} x {options.questions} questions of grade {options.grade}\n")
        print("| strategy | weighted | best | against REBASE | KV held, mean | peak | REBASE's mean / this | tokens |")
        print("|---|---:|---:|---|---:|---:|---:|---:|")
        base: list[SearchResult] = []
        for strategy in sorted(options.strategies, key=lambda name: name != "rebase"):
            print(f"{strategy} {width}", file=sys.stderr, flush=True)
            results = [result for seed in options.seeds for result in searched(strategy, width, seed, options)]
            base = base or results
            votes, first = right(results), right(base)
            low, high = interval([one - other for one, other in zip(votes, first, strict=True)])
            held = statistics.fmean(result.mean_kv_tokens for result in results)
            peak = statistics.fmean(result.peak_kv_tokens for result in results)
            ratio = statistics.fmean(result.mean_kv_tokens for result in base) / held
            change = statistics.fmean(votes) - statistics.fmean(first)
            print(
                f"| {strategy} | {statistics.fmean(votes):.3f} | {statistics.fmean(right(results, 'best')):.3f} "
                f"| {change:+.3f} ({low:+.3f} to {high:+.3f}) | {held:,.0f} | {peak:,.0f} | {ratio:.2f} "
                f"| {statistics.fmean(result.tokens for result in results):,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
