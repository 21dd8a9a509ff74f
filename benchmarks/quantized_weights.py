"""What quantized weights gain and cost on this CPU, against float32: time of a tick, bytes, how far the text drifts.

    python -m benchmarks.quantized_weights --model smollm2-135m --rows 1 16 64 256 --ladder 200

Every side runs in turn within each round. With --ladder the seedlings search as many questions, best-of-16.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from palmette import Searcher, load_task
from palmette.engine.pieces import Piece
from palmette.engine.tree_model import TreeModel
from palmette.search.answer import VOTES
from palmette.units import format_bytes
from palmette.zoo.load import load_policy

SIDES: dict[str, dict[str, str]] = {
    "float32": {},
    "dtype bfloat16": {"dtype": "bfloat16"},
    "quantize bfloat16": {"quantize": "bfloat16"},
    "quantize int8": {"quantize": "int8"},
}
TEXTS = ("docs/strategies.md", "docs/report.md", "README.md", "LICENSE")
PROMPT_TOKENS = 128
WINDOW_TOKENS = 512


@torch.inference_mode()
def tick_seconds(tree: TreeModel, rows: int, ticks: int) -> float:
    """Return the fewest CPU seconds of a tick that computes one token for each of so many rows below one prompt."""
    root = tree.cache.add(None, range(1000, 1000 + PROMPT_TOKENS))
    tree.cache.reserve([(root, PROMPT_TOKENS)], [root])
    tree.run([Piece(root, 0, PROMPT_TOKENS)])
    leaves = [tree.cache.add(root, [2000 + row]) for row in range(rows)]
    shortest = float("inf")
    for tick in range(ticks):
        tree.cache.reserve([(leaf, tick + 1) for leaf in leaves], leaves)
        begun = time.process_time()
        tree.run([Piece(leaf, tick, tick + 1) for leaf in leaves])
        shortest = min(shortest, time.process_time() - begun)
        for leaf in leaves:
            leaf.tokens.append(3000)
    for node in (*leaves, root):
        tree.cache.drop(node)
    return shortest


@torch.inference_mode()
def log_chances(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of all chances after each token, window by window."""
    return torch.cat([model(input_ids=row[None]).logits[0].float().log_softmax(-1) for row in tokens])


def weight_bytes(model: torch.nn.Module) -> int:
    """Return what all parameters take, tied ones once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def ladder(questions: int, kind: str) -> str:
    """Search with both seedlings quantized; return how many answers were right."""
    with Searcher(settings={"policy.quantize": kind, "reward.quantize": kind}) as searcher:
        task, begun = load_task("ladder", questions=questions), time.monotonic()
        results = searcher.search(task)
        seconds = time.monotonic() - begun
    votes = [
        f"{vote} {statistics.mean(result.choices[vote].outcome == 'correct' for result in results):.3f}"
        for vote in VOTES
    ]
    return f"{', '.join(votes)}, {seconds:.0f} s"


def main() -> None:
    """Print one line for each side, then one for each ladder run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ticks", type=int, default=4)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--ladder", type=int, default=0, metavar="QUESTIONS")
    options = parser.parse_args()
    loaded = {side: load_policy(options.model, **settings) for side, settings in SIDES.items()}
    models: dict[str, Any] = {side: model for side, (model, _) in loaded.items()}
    tokenizer = loaded["float32"][1]
    text = "\n".join((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in TEXTS)
    count = options.windows * WINDOW_TOKENS
    tokens = torch.tensor(tokenizer.encode(text, truncation=True, max_length=count)).view(options.windows, -1)
    exact = log_chances(models["float32"], tokens)
    trees = {side: TreeModel(model) for side, model in models.items()}
    gains: dict[str, list[str]] = {side: [] for side in SIDES}
    for rows in options.rows:
        ratios: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            seconds = {side: tick_seconds(tree, rows, options.ticks) for side, tree in trees.items()}
            for side in SIDES:
                ratios[side].append(seconds["float32"] / seconds[side])
        for side in SIDES:
            gains[side].append(f"{rows} rows x{statistics.median(ratios[side]):.2f}")
    for side, model in models.items():
        near = log_chances(model, tokens)
        divergence = (exact.exp() * (exact - near)).sum(-1)
        same = (exact.argmax(-1) == near.argmax(-1)).float().mean()
        print(
            f"{side}: {', '.join(gains[side])}; {format_bytes(weight_bytes(model))}; KL mean {divergence.mean():.5f}, "
            f"99% below {divergence.quantile(0.99):.4f}; same likeliest token {same:.1%}",
            flush=True,
        )
    for kind in ("none", "bfloat16", "int8") if options.ladder else ():
        print(f"ladder, {kind}: {ladder(options.ladder, kind)}", flush=True)


if __name__ == "__main__":
    main()
