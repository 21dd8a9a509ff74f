"""Time of one tick by rows and by the length of the prefix that all rows share, with SmolLM2-135M: a table, a plot.

    python -m benchmarks.growth --plot docs/growth.svg

Every row has 16 tokens of its own below the prefix. The same tick is timed several times; the median counts.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import argparse
import statistics
import time
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import torch
from matplotlib import pyplot

from palmette.engine.limits import PREFILL_TOKENS
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel
from palmette.zoo.load import load_policy

ROWS = (16, 64, 256, 1024)
PREFIXES = (64, 256, 1024)
OWN_TOKENS = 16


@torch.inference_mode()
def tick_seconds(tree: TreeModel, rows: int, prefix: int, ticks: int) -> float:
    """Return the median time in which each of the rows below one prefix gets its next token computed."""
    cache = tree.cache
    root = cache.add(None, [(7919 * place) % 40_000 + 1000 for place in range(prefix)])
    tips = [cache.add(root, [(31 * row + place) % 40_000 + 1000 for place in range(OWN_TOKENS)]) for row in range(rows)]
    while any(tip.computed < OWN_TOKENS for tip in tips):
        pieces, _ = tree.fit(tips, tips)
        tree.run(list(pieces.values()))
    taken = []
    for _ in range(ticks):
        for tip in tips:
            tip.computed -= 1  # The last token once more.
        begun = time.perf_counter()
        pieces, _ = tree.fit(tips, tips)
        tree.run(list(pieces.values()))
        taken.append(time.perf_counter() - begun)
    _drop(tree, [*tips, root])
    return statistics.median(taken)


def _drop(tree: TreeModel, nodes: list[CacheNode]) -> None:
    for node in nodes:
        tree.cache.drop(node)
    tree.cache.check_integrity()


def main() -> None:
    """Print the table as Markdown, draw the plot where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--ticks", type=int, default=5)
    options = parser.parse_args()
    assert max(PREFIXES) <= PREFILL_TOKENS
    model, _ = load_policy("smollm2-135m")
    tree = TreeModel(model)
    seconds = {(rows, prefix): tick_seconds(tree, rows, prefix, options.ticks) for rows in ROWS for prefix in PREFIXES}
    print("| rows | " + " | ".join(f"prefix {prefix}" for prefix in PREFIXES) + " |")
    print("|---:|" + "---:|" * len(PREFIXES))
    for rows in ROWS:
        cells = [
            f"{seconds[rows, prefix] * 1000:,.0f} ms, {rows / seconds[rows, prefix]:,.0f}/s" for prefix in PREFIXES
        ]
        print(f"| {rows} | " + " | ".join(cells) + " |")
    if options.plot:
        draw(seconds, options.plot)


def draw(seconds: dict[tuple[int, int], float], path: Path) -> None:
    """Draw time per row against rows, one line for each length of the shared prefix."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for prefix in PREFIXES:
        label = f"{prefix} shared tokens"
        axes[0].plot(ROWS, [seconds[rows, prefix] for rows in ROWS], "o-", label=label)
        axes[1].plot(ROWS, [seconds[rows, prefix] / rows * 1000 for rows in ROWS], "o-", label=label)
    for axis, title in zip(axes, ("seconds a tick", "milliseconds a row"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(ROWS, [str(rows) for rows in ROWS])
        axis.set_xlabel("rows")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
