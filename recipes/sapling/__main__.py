"""`python -m recipes.sapling`: SmolLM2 learns to solve `words` and to judge its steps, by palmette's own commands."""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from palmette import Searcher
from palmette.run.row_models import ADAPTER
from recipes.commands import command, last_checkpoint
from recipes.sapling.ship import ship
from recipes.sapling.sums import sums
from recipes.seedling.rows import write
from recipes.words import labels_of, search, tell_solved, write_rows

SEED = 0
BASE = "smollm2-135m"
GRADES = (1, 2)
_KNOWS_BF16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
DTYPE = "bfloat16" if _KNOWS_BF16 else "float32"
"""Products in bfloat16 take six times as long as in float32 on a processor that does not know them."""
STAGES: tuple[tuple[str, int, int, str], ...] = (
    ("1,2", 650, 0, "constant"),
    ("1,2,2", 640, 1000, "linear"),
    ("1,2,2", 1600, 1500, "linear"),
)
"""Grades in turn, solutions, rows of sums, schedule of the learning rate. Most of what it got wrong was arithmetic."""
LORA = {
    "policy.dtype": DTYPE,
    "train.method": "lora",
    "train.lora_rank": 16,
    "train.learning_rate": 2e-3,
    "train.warmup_updates": 20,
    "train.gradient_checkpointing": "false",
    "train.checkpoint_every": 50,
}
SFT = {**LORA, "sft.batch_tokens": 1536}
SAMPLES = (*[(1, 120)] * 6, *[(2, 70)] * 4)
"""Grades and questions, of each of which the judge sees four solutions of the policy. Each part has a file."""
PRM = {
    **LORA, "train.learning_rate": 3e-4, "train.warmup_updates": 10, "train.schedule": "linear",
    "prm.batch_tokens": 1536, "prm.test_share": 0.06,
}  # fmt: skip


def main() -> None:
    """Train the policy in three stages, then a reward model that begins as the policy, on labels of its solutions."""
    parser = argparse.ArgumentParser(description="Train both. Stopped at any moment, the same command goes on.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/sapling"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows and labels to train on")
    parser.add_argument("--tested", type=int, default=50, help="test questions of each grade to measure with")
    options = parser.parse_args()
    runs, settings = options.runs, SFT
    for number, (grades, solutions, drills, schedule) in enumerate(STAGES, 1):
        data, out = runs / f"stage-{number}.jsonl", runs / f"stage-{number}"
        rows = max(4, round(solutions * options.share))
        told = write_rows(
            runs / f"words-{number}.jsonl", grades, rows, "--solutions", "2", seed=number, style="quoted-goals"
        )
        drilled = write(runs / f"sums-{number}.jsonl", sums(number), round(drills * options.share))
        data.write_bytes(told.read_bytes() + drilled.read_bytes())
        train("sft", data, out, {**settings, "train.schedule": schedule})
        settings = {**SFT, "policy.adapter": last_checkpoint(out)}
    policy = last_checkpoint(runs / f"stage-{len(STAGES)}")
    ship(policy, BASE, options.out / "sapling")

    steps = runs / "steps.jsonl"
    if not steps.exists():
        with searcher_of(policy) as searcher:
            tell_solved(searcher, options.tested, GRADES)
            write(steps, chain.from_iterable(own_steps(searcher, runs, options.share)))
    train("train-prm", steps, runs / "prm", {**PRM, "policy.adapter": policy})  # It tells its AUC.
    judge = last_checkpoint(runs / "prm")
    ship(judge / ADAPTER, BASE, options.out / "sapling-prm", classifier=judge)


def own_steps(searcher: Searcher, runs: Path, share: float) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the rows of each part of the policy's own solutions, which are searched unless their file is there."""
    for number, (grade, count) in enumerate(SAMPLES):
        path = runs / f"steps-{number}.jsonl"
        if not path.exists():
            results = search(searcher, max(4, round(count * share)), "train", grade, seed=100 + number)
            write(path, labels_of(results))
        yield map(json.loads, path.read_text(encoding="utf-8").splitlines())


def searcher_of(policy: Path) -> Searcher:
    """Return a searcher that has the policy solve each question four times."""
    settings = {"policy.adapter": str(policy), "policy.dtype": DTYPE, "seed": SEED}
    return Searcher(BASE, None, "best_of_n", settings=settings, width=4, total_tokens=600)


def train(kind: str, data: Path, out: Path, settings: dict[str, object]) -> None:
    """Train on rows of a file until it is done, on all cores: sums then depend on how many there are."""
    subprocess.run(command(kind, Path(BASE), data, out, settings, SEED), check=True, env=os.environ)


if __name__ == "__main__":
    main()
