"""`python -m recipes.seedling_words`: trains the small models of the task `words` by palmette's own commands."""

import argparse
from pathlib import Path

from palmette import Searcher, SearchResult, load_task
from palmette.settings import TaskSettings
from palmette.tasks.task import read_format
from palmette.tasks.words.check import check_solution
from palmette.tasks.words.reading import read_problem
from palmette.tasks.words.rows import solution_rows
from recipes.commands import copy_model, last_checkpoint, solved, train
from recipes.seedling.rows import write
from recipes.seedling.untrained import new_policy
from recipes.seedling_words.alphabet import alphabet

SEED = 0
PROMPT = "{question}"
WIDTH, LAYERS = 192, 8
GRADE = 3
"""The grade that the policy is made for."""
STAGES: tuple[tuple[tuple[int, ...], int, float], ...] = (
    ((1,), 60_000, 2e-3),
    ((1, 2, 2), 60_000, 2e-3),
    ((2, 3, 3), 60_000, 1.5e-3),
)
"""Grades in turn, solutions, learning rate: easier first."""
SFT = {
    "sft.batch_tokens": 4096,
    "train.weight_decay": 0.01,
    "train.warmup_updates": 100,
    "train.schedule": "linear",
    "train.gradient_checkpointing": "false",
    "train.checkpoint_every": 250,
}
PRM = {**SFT, "prm.batch_tokens": 4096, "train.learning_rate": 5e-4, "prm.epochs": 2, "prm.test_share": 0.08}
PRM.pop("sft.batch_tokens")


def main() -> None:
    """Train the policy on solutions, easier ones first; then a reward model on the policy's own steps."""
    parser = argparse.ArgumentParser(
        description="Train the small models of `words`. Stopped at any moment, the same command goes on."
    )
    parser.add_argument("--out", type=Path, default=Path("src/palmette/zoo"))
    parser.add_argument("--runs", type=Path, default=Path("runs/seedling-words"))
    parser.add_argument("--share", type=float, default=1.0, help="of the rows to train on")
    parser.add_argument("--samples", type=int, default=6000, help="solutions of the policy that are labeled")
    parser.add_argument("--tested", type=int, default=500, help="test problems that the models are measured on")
    options = parser.parse_args()
    runs, folder, tokenizer = options.runs, options.runs / "untrained", alphabet()
    new_policy(tokenizer, SEED, WIDTH, LAYERS).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    form = read_format("words", TaskSettings(name="words", prompt=PROMPT))
    for number, (grades, count, rate) in enumerate(STAGES, 1):
        rows = solution_rows(grades, "train", SEED + number, form)
        data = write(runs / f"stage-{number}.jsonl", rows, round(count * options.share))
        out = runs / f"stage-{number}"
        train("sft", folder, data, out, {**SFT, "train.learning_rate": rate}, SEED)
        folder = last_checkpoint(out)
        print(f"stage {number}: pass@1 {solved(search(folder, options.tested, 'train', SEED + 10)):.3f}", flush=True)
    policy = options.out / "seedling-words"
    copy_model(folder, policy)
    print(f"policy: pass@1 {solved(search(policy, options.tested, 'test', SEED)):.3f} on test problems", flush=True)
    written = search(policy, options.samples, "train", SEED + 20)
    steps = write(runs / "steps.jsonl", map(labeled, written), options.samples)
    train("train-prm", policy, steps, runs / "prm", PRM, SEED)  # It tells its AUC.
    copy_model(last_checkpoint(runs / "prm"), options.out / "seedling-words-prm")


def search(policy: Path, count: int, split: str, seed: int) -> list[SearchResult]:
    """Let a policy solve problems once each."""
    task = load_task("words", questions=count, split=split, seed=seed, grade=GRADE)
    settings = {"task.format": "words", "task.prompt": PROMPT, "seed": seed}
    with Searcher(str(policy), None, settings=settings, width=1, total_tokens=480) as searcher:
        return searcher.search(task)


def labeled(result: SearchResult) -> dict[str, object]:
    """Return a solution as a row of `palmette train-prm`: a step is right if it follows from those before it."""
    question = result.question.messages[-1]["content"]
    problem = read_problem(question)
    lines = [step.text.strip("\n") for step in result.tree.steps(result.leaves[0].id)]
    lines = [line for line in lines if line.strip()]
    labels = [check.verdict == "yes" for check in check_solution(problem, "\n".join(lines))]
    return {"prompt": question, "completions": lines, "labels": labels}


if __name__ == "__main__":
    main()
