"""`python -m recipes.sapling`: SmolLM2 learns to solve `words` and to judge its steps, by palmette's own commands."""

import argparse
import os
import subprocess
from pathlib import Path

from palmette.run.row_models import ADAPTER
from recipes.commands import command, last_checkpoint
from recipes.sapling.ship import ship
from recipes.words import write_rows

SEED = 0
BASE = "smollm2-135m"
STAGES: tuple[tuple[str, int, str], ...] = (("1,2", 1600, "constant"), ("1,2,2", 6400, "linear"))
"""Grades in turn, solutions, schedule of the learning rate: easier first."""
LORA = {
    "policy.dtype": "bfloat16",
    "train.method": "lora",
    "train.lora_rank": 16,
    "train.learning_rate": 1e-3,
    "train.warmup_updates": 20,
    "train.gradient_checkpointing": "false",
    "train.checkpoint_every": 25,
}
SFT = {**LORA, "sft.batch_tokens": 2048}
PRM = {**LORA, "prm.batch_tokens": 2048, "prm.test_share": 0.05, "train.schedule": "linear"}


def main() -> None:
    """Train the policy in two stages, then a reward model that begins as the policy, on right and wrong solutions."""
    parser = argparse.ArgumentParser(description="Train both. Stopped at any moment, the same command goes on.")
    parser.add_argument("--out", type=Path, default=Path("runs/sapling/models"))
    parser.add_argument("--runs", type=Path, default=Path("runs/sapling"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows to train on")
    parser.add_argument("--labeled", type=int, default=3000, help="solutions that the reward model learns from")
    options = parser.parse_args()
    runs, settings = options.runs, SFT
    for number, (grades, count, schedule) in enumerate(STAGES, 1):
        data, out = runs / f"stage-{number}.jsonl", runs / f"stage-{number}"
        write_rows(data, grades, max(4, round(count * options.share)), "--solutions", "4", seed=number)
        train("sft", data, out, {**settings, "train.schedule": schedule})
        settings = {**SFT, "policy.adapter": last_checkpoint(out)}
    policy = last_checkpoint(runs / f"stage-{len(STAGES)}")
    steps = runs / "steps.jsonl"
    labeled = max(20, round(options.labeled * options.share))
    write_rows(steps, "1,2", labeled, "--kind", "prm", "--solutions", "3", seed=len(STAGES) + 1)
    train("train-prm", steps, runs / "prm", {**PRM, "policy.adapter": policy})  # It tells its AUC.
    judge = last_checkpoint(runs / "prm")
    ship(policy, BASE, options.out / "sapling")
    ship(judge / ADAPTER, BASE, options.out / "sapling-prm", classifier=judge)


def train(kind: str, data: Path, out: Path, settings: dict[str, object]) -> None:
    """Train on rows of a file until it is done, on all cores: sums then depend on how many there are."""
    subprocess.run(command(kind, Path(BASE), data, out, settings, SEED), check=True, env=os.environ)


if __name__ == "__main__":
    main()
