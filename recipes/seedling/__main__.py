"""`python -m recipes.seedling`: trains the seedlings by `palmette sft` and `palmette train-prm`, and measures them."""

import argparse
import subprocess
from pathlib import Path

from palmette import Searcher, SearchResult, load_task
from palmette.search.answer import aggregate_scores
from palmette.train.supervised.measures import auc
from recipes.commands import command, copy_model, last_checkpoint, one_thread, solved, train
from recipes.seedling.alphabet import alphabet
from recipes.seedling.rows import labeled, solutions, write
from recipes.seedling.untrained import new_policy

SEED = 0
GOOD_ENOUGH = 0.5  # A policy that is always right leaves search nothing to do.
SFT = {
    "sft.batch_tokens": 2048,  # Small: at this size updates are what is short, not tokens.
    "train.learning_rate": 3e-3,
    "train.weight_decay": 0.01,
    "train.warmup_updates": 100,
    "train.schedule": "cosine",
    "train.gradient_checkpointing": "false",
    "train.checkpoint_every": 250,
    "train.keep_checkpoints": 1000,
}
PRM = {**SFT, "prm.batch_tokens": 3072, "train.learning_rate": 1e-3, "prm.epochs": 2, "prm.test_share": 0.08}
PRM.pop("sft.batch_tokens")


def main() -> None:
    """Train the policy; then, side by side, a copy that hardly errs and a reward model on the policy's own steps."""
    parser = argparse.ArgumentParser(
        description="Train the seedlings. Stopped at any moment, the same command goes on."
    )
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/seedling"))
    parser.add_argument("--rows", type=int, default=180_000, help="solutions that the policy learns from")
    parser.add_argument("--ripe-rows", type=int, default=150_000, help="further ones that its riper copy learns from")
    parser.add_argument("--samples", type=int, default=24_000, help="solutions of the policy that are labeled")
    parser.add_argument("--tested", type=int, default=2048, help="test problems that the models are measured on")
    options = parser.parse_args()
    runs, policy = options.runs, options.out / "seedling"
    untrained, tokenizer = runs / "untrained", alphabet()
    new_policy(tokenizer, SEED).save_pretrained(untrained)
    tokenizer.save_pretrained(untrained)
    train("sft", untrained, write(runs / "rows.jsonl", solutions(SEED), options.rows), runs / "policy", SFT, SEED)
    copy_model(first_good(runs / "policy" / "checkpoints", min(256, options.tested)), policy)
    further = write(runs / "more.jsonl", solutions(SEED + 101), options.ripe_rows)
    ripening = subprocess.Popen(command("sft", policy, further, runs / "ripe", SFT, SEED), env=one_thread())
    test = search(policy, options.tested, "test")
    print(f"policy: pass@1 {solved(test):.3f} on {len(test)} test problems", flush=True)
    written = search(policy, options.samples, "train", seed=SEED + 2)
    rows = (row for result in written if (row := labels_of(result)) is not None)
    steps = write(runs / "steps.jsonl", rows, options.samples)
    train("train-prm", policy, steps, runs / "prm", PRM, SEED)  # It tells its AUC.
    copy_model(last_checkpoint(runs / "prm"), options.out / "seedling-prm")
    if ripening.wait():
        raise SystemExit("the ripe copy could not be trained")
    copy_model(last_checkpoint(runs / "ripe"), options.out / "seedling-ripe")
    judged = search(policy, options.tested, "test", reward=options.out / "seedling-ripe")
    chances = [aggregate_scores(result.tree.scores(result.leaves[0].id), "prod") for result in judged]
    told = auc(chances, [result.outcome == "correct" for result in judged])  # None if all are solved, or none is.
    print(f"ripe policy: AUC {told} of its likelihood for a solution, on {len(judged)} samples of the policy")


def first_good(checkpoints: Path, count: int) -> Path:
    """Return the first checkpoint that solves enough of so many problems of the training split, or the last one."""
    folders = sorted(checkpoints.iterdir())
    return next(
        (folder for folder in folders if solved(search(folder, count, "train", SEED + 1)) >= GOOD_ENOUGH), folders[-1]
    )


def search(policy: Path, count: int, split: str, seed: int = SEED, reward: Path | None = None) -> list[SearchResult]:
    """Let a policy solve problems of the default grade once each; a riper copy may score them by their likelihood."""
    task = load_task("ladder", questions=count, split=split, seed=seed)
    scored = {} if reward is None else {"reward.score": "likelihood"}
    settings = {"task.format": "ladder", "seed": seed, **scored}
    with Searcher(str(policy), reward and str(reward), settings=settings, width=1, total_tokens=240) as searcher:
        return searcher.search(task)


def labels_of(result: SearchResult) -> dict[str, object] | None:
    """Return a solution as a row with labels."""
    leaf = result.leaves[0]
    lines = [step.text for step in result.tree.steps(leaf.id)]
    return labeled(result.question.messages[-1]["content"], lines, finished=leaf.finished)


if __name__ == "__main__":
    main()
