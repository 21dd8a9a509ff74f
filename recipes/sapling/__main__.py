"""`python -m recipes.sapling`: SmolLM2 learns to solve `words` and to judge its steps, by palmette's own commands."""

import argparse
import json
import os
import subprocess
from itertools import chain
from pathlib import Path

from palmette import Searcher
from palmette.run.row_models import ADAPTER
from recipes.commands import command, last_checkpoint
from recipes.sapling.ship import ship
from recipes.sapling.sums import sums
from recipes.seedling.rows import write
from recipes.words import labels_of, samples, tell_solved, write_rows

SEED = 0
BASE = "smollm2-135m"
GRADES = (1, 2)
STAGES: tuple[tuple[str, int, int, str], ...] = (
    ("1,2", 650, 0, "constant"),
    ("1,2,2", 640, 1000, "linear"),
    ("1,2,2", 1600, 1500, "linear"),
)
"""Grades in turn, solutions, rows of sums, schedule of the learning rate. Most of what it got wrong was arithmetic."""
LORA = {
    "policy.dtype": "bfloat16",
    "train.method": "lora",
    "train.lora_rank": 16,
    "train.learning_rate": 2e-3,
    "train.warmup_updates": 20,
    "train.gradient_checkpointing": "false",
    "train.checkpoint_every": 50,
}
SFT = {**LORA, "sft.batch_tokens": 1536}
SAMPLES = {1: 320, 2: 40}
"""Questions of each grade of which the judge sees four solutions of the policy."""
PRM = {
    **LORA, "train.learning_rate": 2e-4, "train.warmup_updates": 10, "train.schedule": "linear",
    "prm.batch_tokens": 1536, "prm.test_share": 0.1,
}  # fmt: skip


def main() -> None:
    """Train the policy in three stages, then a reward model that begins as the policy, on solutions with labels.

    These are the policy's own, and made ones with plausible mistakes.
    """
    parser = argparse.ArgumentParser(description="Train both. Stopped at any moment, the same command goes on.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/sapling"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows and labels to train on")
    parser.add_argument("--made", type=int, default=201, help="made solutions, right and wrong, that are labeled too")
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
            own = list(labels_of(samples(searcher, SAMPLES, options.share)))
        made = write_rows(
            runs / "made.jsonl", "1,2,2", options.made, "--kind", "prm", seed=len(STAGES) + 1, style="quoted-goals"
        )
        wrong = map(json.loads, made.read_text(encoding="utf-8").splitlines())
        write(steps, chain(own, wrong))
    train("train-prm", steps, runs / "prm", {**PRM, "policy.adapter": policy})  # It tells its AUC.
    judge = last_checkpoint(runs / "prm")
    ship(judge / ADAPTER, BASE, options.out / "sapling-prm", classifier=judge)


def searcher_of(policy: Path) -> Searcher:
    """Return a searcher that has the policy solve each question four times."""
    settings = {"policy.adapter": str(policy), "policy.dtype": "bfloat16", "seed": SEED}
    return Searcher(BASE, None, "best_of_n", settings=settings, width=4, total_tokens=600)


def train(kind: str, data: Path, out: Path, settings: dict[str, object]) -> None:
    """Train on rows of a file until it is done, on all cores: sums then depend on how many there are."""
    subprocess.run(command(kind, Path(BASE), data, out, settings, SEED), check=True, env=os.environ)


if __name__ == "__main__":
    main()
