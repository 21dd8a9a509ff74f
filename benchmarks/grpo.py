"""GRPO by palmette and by TRL on the same questions with the same reward: seconds and peak memory of an update.

    python -m benchmarks.grpo --trl TRL_ENV/bin/python

SmolLM2-135M in float32, sums of 2 or 3 numbers of one digit, 8 responses of at most 32 tokens to each of 4 questions, a
KL divergence of 0.04 from the reference, all weights trained or LoRA. Sides take turns; each runs in a process of its
own. Peaks are what the kernel kept for the process (VmHWM).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from palmette.config import load_config
from palmette.settings import Config
from palmette.units import format_bytes

HERE = Path(__file__).parent
GENERATOR = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}
QUESTIONS, WIDTH, TOKENS, KL_WEIGHT = 4, 8, 32, 0.04


def config_of(options: argparse.Namespace, seed: int) -> Config:
    """Return the config of our side."""
    return load_config(
        None,
        {
            "policy.model": "smollm2-135m",
            "task.name": "rg:chain_sum",
            "task.generator": GENERATOR,
            "task.questions": options.updates * QUESTIONS,
            "search.width": WIDTH,
            "search.total_tokens": TOKENS,
            "search.step_tokens": TOKENS,
            "task.step_end": "<|never|>",
            "seed": seed,
            "train.updates": options.updates,
            "train.questions": QUESTIONS,
            "train.kl_weight": KL_WEIGHT,
            "train.learning_rate": options.learning_rate,
            "train.method": options.method,
            "train.rewards": {"benchmarks.sum_reward:last_number_is_right": 1.0},
            "train.checkpoint_every": 10**6,
            "train.gradient_checkpointing": options.checkpointing,
            "train.micro_batch_tokens": options.micro_batch_tokens,
        },
    )


def ours(options: argparse.Namespace, seed: int) -> None:
    """Train here; print a line for each update as the other side does."""
    from palmette.events import UpdateDone
    from palmette.memory.host import peak_bytes
    from palmette.run.train import TrainingRun

    with tempfile.TemporaryDirectory() as folder, TrainingRun(config_of(options, seed), Path(folder)) as run:
        for event in run.updates():
            if isinstance(event, UpdateDone):
                told: dict[str, Any] = {
                    "seconds": sum(event.seconds.values()),
                    "reward": event.numbers["reward"],
                    "peak_bytes": max([*event.peak_bytes.values(), peak_bytes() or 0]),
                    "kl": event.numbers.get("kl", 0.0),
                    "phases": event.seconds,
                }
                print("UPDATE " + json.dumps(told), flush=True)


def theirs(options: argparse.Namespace, seed: int) -> list[str]:
    """Return the command of TRL's side."""
    from palmette.tasks.load import load_task
    from palmette.zoo.resolve import resolve

    config = config_of(options, seed)
    task = load_task(config.task.model_copy(update={"split": "train"}))
    rows = [{"prompt": list(question.messages), "answer": question.reference} for question in task.questions]
    folder = Path(tempfile.mkdtemp())
    questions = folder / "questions.json"
    questions.write_text(json.dumps(rows))
    told = {
        "method": options.method, "learning_rate": options.learning_rate, "questions": QUESTIONS, "width": WIDTH,
        "tokens": TOKENS, "kl_weight": KL_WEIGHT, "updates": options.updates, "seed": seed,
        "gradient_checkpointing": options.trl_checkpointing, "out": str(folder / "out"),
    }  # fmt: skip
    return [
        str(options.trl),
        str(HERE / "trl_worker.py"),
        str(resolve("smollm2-135m")),
        str(questions),
        json.dumps(told),
    ]


def told_rewards(updates: list[dict[str, Any]]) -> str:
    """Return the reward of each update."""
    return " ".join(f"{update['reward']:.2f}" for update in updates)


def run(command: list[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Run a side to its end and return its updates."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    found = [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines() if line.startswith("UPDATE ")]
    if done.returncode or not found:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return found


def main() -> None:
    """Let both sides train in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl", type=Path, help="Python of an environment with trl; without it only palmette runs")
    parser.add_argument("--method", choices=["full", "lora"], default="full")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--trl-checkpointing", action="store_true")
    parser.add_argument("--ours", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours is not None:
        ours(options, options.ours)
        return
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    sides: dict[str, list[list[dict[str, Any]]]] = {"palmette": [], **({"TRL": []} if options.trl else {})}
    for seed in options.seeds:
        command = [sys.executable, "-m", "benchmarks.grpo", *sys.argv[1:], "--ours", str(seed)]
        sides["palmette"].append(run(command, dict(os.environ)))
        if options.trl:
            sides["TRL"].append(run(theirs(options, seed), plain))
    medians: dict[str, tuple[float, int]] = {}
    for name, runs in sides.items():
        later = [update["seconds"] for updates in runs for update in updates[1:]] or [runs[0][0]["seconds"]]
        peak = max(update["peak_bytes"] for updates in runs for update in updates)
        medians[name] = statistics.median(later), peak
        print(
            f"{name}: {medians[name][0]:.1f} s an update (median; {min(later):.1f} to {max(later):.1f}), "
            f"peak {format_bytes(peak)}"
        )
        for seed, updates in zip(options.seeds, runs, strict=True):
            print(f"  seed {seed}: rewards {told_rewards(updates)}")
    if options.trl:
        (ours_s, ours_b), (theirs_s, theirs_b) = medians["palmette"], medians["TRL"]
        print(f"TRL takes {theirs_s / ours_s:.1f} times the seconds and {theirs_b / ours_b:.1f} times the memory")
    print(f"palmette's last update by phase: {sides['palmette'][0][-1]['phases']}")


if __name__ == "__main__":
    main()
