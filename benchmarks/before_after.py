"""Search before training, GRPO on flat and on tree rollouts, search after: accuracy against what an answer costs.

    python -m benchmarks.before_after --policy seedling-words --reward seedling-words-prm --plot docs/before-after.svg

Three policies: as it is, trained on independent responses, trained on trees, for as many updates. Each then answers the
same test questions of `words` by several strategies and widths; differences from before are paired. A cell that was
measured stands in `cells.jsonl` of the folder of runs, and the same command goes on behind the last one.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pupil_search import STRATEGIES, interval, parsed, right
from benchmarks.words_runs import open_runs
from palmette import Searcher, load_task
from recipes.commands import last_checkpoint

ASKED = (
    "policy", "reward", "plain", "grade", "method", "learning_rate", "updates", "train_questions", "set", "train",
    "questions", "total_tokens", "seed",
)  # fmt: skip
"""The options on which a cell depends, but for strategy and width, which it tells."""
ROLLOUTS = {
    "flat": {"search.strategy": "best_of_n"},
    "trees": {"search.strategy": "fixed_tree", "search.branches": "[4,2,2]"},
}
MARKS = {"best_of_n": "o", "rebase": "s", "ets": "^", "espalier": "D", "beam": "v", "dvts": "P"}
COLORS = {"before": "#8a8f98", "flat": "#c4622d", "trees": "#2f7d4f"}


def trained(kind: str, options: argparse.Namespace) -> Path:
    """Train on rollouts of a kind until it is done, and return the policy."""
    given = {
        "policy.model": options.policy, "reward.model": "none", "task.name": "words", "task.grade": options.grade,
        "task.generator": json.dumps({"plain": options.plain}),
        "search.width": 16, "search.total_tokens": options.total_tokens, "train.updates": options.updates,
        "train.questions": options.train_questions, "train.learning_rate": options.learning_rate,
        "train.method": options.method, "seed": options.seed, **ROLLOUTS[kind],
    }  # fmt: skip
    settings = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    more = [part for pair in (*options.set, *options.train) for part in ("--set", pair)]
    out = options.runs / kind
    command = [sys.executable, "-m", "palmette", "train", "--out", str(out), *settings, *more]
    if code := subprocess.run(command, check=False).returncode:
        raise SystemExit(code)  # It has said why.
    return last_checkpoint(out)


def spent(run: Path) -> tuple[int, float]:
    """Return the tokens and the seconds of a training run."""
    lines = map(json.loads, (run / "events.jsonl").read_text(encoding="utf-8").splitlines())
    updates = [line for line in lines if line["kind"] == "update_done"]
    return round(sum(line["numbers"]["generated_tokens"] for line in updates)), sum(
        sum(line["seconds"].values()) for line in updates
    )


def measured(policy: str, reward: str, strategy: str, width: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return a cell: accuracy with its interval, and what a question cost."""
    task = load_task(
        "words",
        questions=options.questions,
        split="test",
        seed=options.seed,
        grade=options.grade,
        generator={"plain": options.plain},
    )
    adapter = Path(policy) / "adapter_config.json"
    with Searcher(
        options.policy if adapter.is_file() else policy,
        reward,
        strategy,
        seed=options.seed,
        settings={**parsed(options.set), **({"policy.adapter": policy} if adapter.is_file() else {})},
        width=width,
        total_tokens=options.total_tokens,
    ) as searcher:
        searcher.load()
        began = time.perf_counter()
        results = searcher.search(task)
        seconds = time.perf_counter() - began
    votes = right(results)
    low, high = interval(votes)
    return {
        "accuracy": statistics.fmean(votes),
        "low": low,
        "high": high,
        "right": votes,
        "tokens": statistics.fmean(result.tokens for result in results),
        "held": statistics.fmean(result.mean_kv_tokens for result in results),
        "seconds": seconds / len(results),
    }


def cells(policies: dict[str, str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a cell for every policy, strategy and width; those that were measured before come from the file."""
    path = options.runs / "cells.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {(cell["policy"], cell["strategy"], cell["width"]): cell for cell in map(json.loads, lines)}
    for name, policy in policies.items():
        for strategy in options.strategies:
            for width in options.widths if strategy == "best_of_n" else [w for w in options.widths if w > 1]:
                cell = known.get((name, strategy, width))
                if cell is None:
                    told = measured(policy, options.reward, strategy, width, options)
                    cell = {"policy": name, "strategy": strategy, "width": width, **told}
                    with path.open("a", encoding="utf-8") as file:
                        print(json.dumps(cell), file=file)
                yield cell


def gained(cell: dict[str, Any], told: list[dict[str, Any]]) -> str:
    """Return the difference from the same search by the policy before, over the same questions, with its interval."""
    before = next(one for one in told if (one["strategy"], one["width"]) == (cell["strategy"], cell["width"]))
    differences = [one - its for one, its in zip(cell["right"], before["right"], strict=True)]
    low, high = interval(differences)
    return f"{statistics.fmean(differences):+.3f} ({low:+.3f} to {high:+.3f})"


def draw(told: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against generated tokens and against seconds of a question."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 5), sharey=True)
    for axis, cost in zip(axes, ("tokens", "seconds"), strict=True):
        for policy, color in COLORS.items():
            for strategy, mark in MARKS.items():
                line = [cell for cell in told if cell["policy"] == policy and cell["strategy"] == strategy]
                if line:
                    bars = [
                        [cell["accuracy"] - cell["low"] for cell in line],
                        [cell["high"] - cell["accuracy"] for cell in line],
                    ]
                    axis.errorbar(
                        [cell[cost] for cell in line], [cell["accuracy"] for cell in line], yerr=bars, color=color,
                        marker=mark, markersize=5, linewidth=1.2, elinewidth=0.5, label=f"{policy}, {strategy}",
                    )  # fmt: skip
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 4)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.set_xlabel(f"{cost} of a question")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy of the weighted vote")
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=len(COLORS), loc="lower center")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train, search, print the table, draw the picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--reward", required=True)
    parser.add_argument("--plain", action="store_true", help="one wording for each kind of fact and question")
    parser.add_argument("--grade", type=int, default=2)
    parser.add_argument("--method", choices=["full", "lora"], default="full")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--train-questions", type=int, default=16, help="questions of an update")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of training and searches")
    parser.add_argument("--train", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of the training")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--total-tokens", type=int, default=400)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["best_of_n", "rebase", "espalier"])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/before-after"))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.widths == [1] and "best_of_n" not in options.strategies:
        parser.error("at width 1 there is only best_of_n: give other widths, or --strategies best_of_n")
    open_runs(options, ASKED)
    policies = {"before": options.policy, **{kind: str(trained(kind, options)) for kind in ROLLOUTS}}
    for kind in ROLLOUTS:
        tokens, seconds = spent(options.runs / kind)
        print(f"{kind}: {options.updates} updates, {tokens:,} generated tokens, {math.ceil(seconds):,} s")
    print(
        "\n| policy | strategy | width | weighted | against before | tokens | KV held, mean | seconds |"
        "\n|---|---|---:|---|---|---:|---:|---:|"
    )
    told = []
    for cell in cells(policies, options):
        told.append(cell)
        print(
            f"| {cell['policy']} | {cell['strategy']} | {cell['width']} | {cell['accuracy']:.3f} ({cell['low']:.3f} to "
            f"{cell['high']:.3f}) | {gained(cell, told)} | {cell['tokens']:,.0f} | {cell['held']:,.0f} | "
            f"{cell['seconds']:.2f} |",
            flush=True,
        )
    if options.plot:
        draw(told, options.plot)


if __name__ == "__main__":
    main()
