"""`python -m recipes.seedling_words`: a small model learns to solve `words`, another to judge its steps."""

import argparse
from pathlib import Path

from palmette import Searcher
from recipes.commands import copy_model, last_checkpoint, train
from recipes.seedling.rows import write
from recipes.seedling_words.alphabet import alphabet
from recipes.seedling_words.untrained import new_policy
from recipes.words import labels_of, search, tell_solved, write_rows

SEED = 0
WIDTH, LAYERS = 128, 3
GRADES = (1, 2, 3)
BOTH = {"train.weight_decay": 0.01, "train.gradient_checkpointing": "false", "train.checkpoint_every": 250}
SFT = {
    **BOTH, "train.optimizer": "muon", "train.learning_rate": 8e-3, "train.warmup_updates": 100,
    "sft.prompt_weight": 0.3, "sft.batch_tokens": 1280,
}  # fmt: skip
STAGES = (("short", "1,2", 40_000, "constant"), ("long", "1,2,3,3", 50_000, "linear"))
"""Name, grades in turn, rows, schedule. Small updates: to find what belongs to a name is learned by their number."""
PRM = {
    **BOTH, "train.learning_rate": 1e-3, "train.schedule": "cosine", "train.warmup_updates": 50,
    "prm.batch_tokens": 3072, "prm.test_share": 0.06, "prm.epochs": 2,
}  # fmt: skip


def main() -> None:
    """Train the policy: short problems, then longer ones; then a reward model from it, on its own steps."""
    parser = argparse.ArgumentParser(description="Train both. Stopped at any moment, the same command goes on.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/seedling-words"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows to train on")
    parser.add_argument("--samples", type=int, default=1500, help="questions of each grade whose solutions are labeled")
    parser.add_argument("--tested", type=int, default=400, help="test questions of each grade to measure with")
    options = parser.parse_args()
    runs, policy, judge = options.runs, options.out / "seedling-words", options.out / "seedling-words-prm"
    tokenizer = alphabet()
    trained = runs / "untrained"
    new_policy(tokenizer, SEED, WIDTH, LAYERS).save_pretrained(trained)
    tokenizer.save_pretrained(trained)
    for seed, (name, grades, rows, schedule) in enumerate(STAGES, 1):
        data = write_rows(runs / f"{name}.jsonl", grades, round(rows * options.share), seed=seed)
        train("sft", trained, data, runs / name, {**SFT, "train.schedule": schedule}, SEED)
        trained = last_checkpoint(runs / name)
    copy_model(trained, policy)
    with Searcher(str(policy), None, settings={"seed": SEED}, width=1, total_tokens=700) as searcher:
        tell_solved(searcher, options.tested, GRADES)
    with Searcher(str(policy), None, settings={"seed": 9}, width=1, total_tokens=700) as searcher:
        written = [result for grade in GRADES for result in search(searcher, options.samples, "train", grade, seed=9)]
    steps = write(runs / "steps.jsonl", labels_of(written))
    train("train-prm", policy, steps, runs / "prm", PRM, SEED)  # It tells its AUC.
    copy_model(last_checkpoint(runs / "prm"), judge)


if __name__ == "__main__":
    main()
