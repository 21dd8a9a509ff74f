"""`python -m recipes.seedling_words`: a small model learns to solve `words`, another to judge its steps."""

import argparse
from pathlib import Path

from palmette import Searcher
from recipes.commands import copy_model, last_checkpoint, train
from recipes.seedling.rows import write
from recipes.seedling_words.alphabet import alphabet
from recipes.seedling_words.deeper import save_deeper
from recipes.seedling_words.untrained import new_policy
from recipes.words import labels_of, samples, tell_solved, write_rows

SEED = 0
WIDTH, LAYERS, MORE_LAYERS = 128, 3, 2
GRADES = (1, 2, 3)
BOTH = {"train.weight_decay": 0.01, "train.gradient_checkpointing": "false", "train.checkpoint_every": 250}
SFT = {
    **BOTH, "train.optimizer": "muon", "train.learning_rate": 8e-3, "train.warmup_updates": 100,
    "sft.prompt_weight": 0.3, "sft.batch_tokens": 1280,
}  # fmt: skip
STAGES = (("short", "1,2", 40_000, "constant"), ("long", "1,2,3,3", 50_000, "linear"))
"""Name, grades in turn, rows, schedule. Small updates: to find what belongs to a name is learned by their number."""
RIPE = ("ripe", "1,2,3,2,3", 64_000, "linear")
"""What the judge learns from more than the policy. Prompts have no weight: they help in the first updates only."""
SAMPLES = {2: 6000, 1: 1000, 3: 500}
"""Questions of each grade of which the judge sees four solutions of the policy."""
PRM = {
    **BOTH, "train.learning_rate": 1e-3, "train.schedule": "cosine", "train.warmup_updates": 50,
    "prm.batch_tokens": 3072, "prm.test_share": 0.02,
}  # fmt: skip


def main() -> None:
    """Train the policy: short problems, then longer ones; then a reward model from a riper copy, on the policy's steps.

    The riper copy gets layers behind its last one before it learns to judge (`deeper` says why).
    """
    parser = argparse.ArgumentParser(description="Train both. Stopped at any moment, the same command goes on.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/seedling-words"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows and labels to train on")
    parser.add_argument("--tested", type=int, default=400, help="test questions of each grade to measure with")
    options = parser.parse_args()
    runs, policy, judge = options.runs, options.out / "seedling-words", options.out / "seedling-words-prm"
    tokenizer = alphabet()
    trained = runs / "untrained"
    new_policy(tokenizer, SEED, WIDTH, LAYERS).save_pretrained(trained)
    tokenizer.save_pretrained(trained)
    for seed, stage in enumerate(STAGES, 1):
        trained = learned(stage, trained, runs, SFT, options.share, seed)
    copy_model(trained, policy)
    with Searcher(str(policy), None, settings={"seed": SEED}, width=1, total_tokens=700) as searcher:
        tell_solved(searcher, options.tested, GRADES)
    steps = runs / "steps.jsonl"
    if not steps.exists():
        with Searcher(str(policy), None, settings={"seed": 9}, width=4, total_tokens=700) as searcher:
            write(steps, labels_of(samples(searcher, SAMPLES, options.share)))
    ripe = learned(RIPE, policy, runs, {**SFT, "sft.prompt_weight": 0.0}, options.share, len(STAGES) + 1)
    judging = save_deeper(ripe, runs / "judging", tokenizer, MORE_LAYERS, SEED)
    train("train-prm", judging, steps, runs / "prm", PRM, SEED)  # It tells its AUC.
    copy_model(last_checkpoint(runs / "prm"), judge)


def learned(
    stage: tuple[str, str, int, str], begin: Path, runs: Path, settings: dict[str, object], share: float, seed: int
) -> Path:
    """Train a model on the rows of a stage and return its last checkpoint."""
    name, grades, rows, schedule = stage
    data = write_rows(runs / f"{name}.jsonl", grades, round(rows * share), seed=seed)
    train("sft", begin, data, runs / name, {**settings, "train.schedule": schedule}, SEED)
    return last_checkpoint(runs / name)


if __name__ == "__main__":
    main()
