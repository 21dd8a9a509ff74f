"""`python -m recipes.seedling_words`: a small model learns to solve `words`, another to judge its steps."""

import argparse
from pathlib import Path

from palmette import Searcher, SearchResult, load_task
from recipes.commands import copy_model, last_checkpoint, solved, train
from recipes.seedling.rows import write
from recipes.seedling.untrained import new_policy
from recipes.seedling_words.alphabet import alike, alphabet
from recipes.words import labels_of, write_rows

SEED = 0
GRADES = (1, 2)
SFT = {
    "train.learning_rate": 3e-3,
    "train.weight_decay": 0.01,
    "train.warmup_updates": 100,
    "train.gradient_checkpointing": "false",
    "train.checkpoint_every": 250,
}
PLAIN = {**SFT, "sft.batch_tokens": 1280, "train.schedule": "constant"}
"""Small updates: to find what follows a name is learned by their number."""
FULL = {**SFT, "sft.batch_tokens": 2048, "train.schedule": "linear"}
LONG = {**FULL, "train.learning_rate": 2.5e-3}
PRM = {
    **SFT, "train.learning_rate": 1e-3, "train.schedule": "cosine", "train.warmup_updates": 50,
    "prm.batch_tokens": 3072, "prm.test_share": 0.06, "prm.epochs": 3,
}  # fmt: skip


def main() -> None:
    """Train the policy: plain problems, all wordings, longer ones; then a reward model from it, on its own steps."""
    parser = argparse.ArgumentParser(description="Train both. Stopped at any moment, the same command goes on.")
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/seedling-words"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows to train on")
    parser.add_argument(
        "--samples",
        type=int,
        default=2500,
        help="questions whose solutions are labeled, of grade 2; twice as many of grade 1",
    )
    parser.add_argument("--tested", type=int, default=400, help="test questions of each grade to measure with")
    options = parser.parse_args()
    runs, policy, judge = options.runs, options.out / "seedling-words", options.out / "seedling-words-prm"
    tokenizer = alphabet()
    untrained = new_policy(tokenizer, SEED, layers=3)  # Learns to copy sooner than one of six, by token and by time.
    alike(untrained, tokenizer)
    untrained.save_pretrained(runs / "untrained")
    tokenizer.save_pretrained(runs / "untrained")

    plain = write_rows(runs / "plain.jsonl", "1,2", round(60_000 * options.share), "--plain", seed=1)
    train("sft", runs / "untrained", plain, runs / "plain", PLAIN, SEED)
    full = write_rows(runs / "full.jsonl", "1,2,2", round(50_000 * options.share), "--solutions", "2", seed=2)
    train("sft", last_checkpoint(runs / "plain"), full, runs / "full", FULL, SEED)
    long = write_rows(runs / "long.jsonl", "1,2,2,3", round(110_000 * options.share), "--solutions", "2", seed=4)
    train("sft", last_checkpoint(runs / "full"), long, runs / "long", LONG, SEED)
    copy_model(last_checkpoint(runs / "long"), policy)
    for grade in GRADES:
        told = solved(search(policy, options.tested, "test", grade))
        print(f"policy: pass@1 {told:.3f} on {options.tested} test questions of grade {grade}", flush=True)

    counts = {1: 2 * options.samples, 2: options.samples}
    written = [result for grade in GRADES for result in search(policy, counts[grade], "train", grade, seed=3)]
    labels = (row for result in written if (row := labels_of(result)) is not None)
    steps = write(runs / "steps.jsonl", labels, len(written))
    train("train-prm", policy, steps, runs / "prm", PRM, SEED)  # It tells its AUC.
    copy_model(last_checkpoint(runs / "prm"), judge)


def search(policy: Path, count: int, split: str, grade: int, seed: int = SEED) -> list[SearchResult]:
    """Let a policy solve questions once each, at temperature 1."""
    task = load_task("words", questions=count, split=split, grade=grade, seed=seed)
    with Searcher(str(policy), None, settings={"seed": seed}, width=1, total_tokens=400) as searcher:
        return searcher.search(task)


if __name__ == "__main__":
    main()
