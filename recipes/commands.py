"""What the recipes have in common: palmette's own commands that train, and the models that come out of them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from palmette import SearchResult


def command(kind: str, policy: Path, data: Path, out: Path, settings: Mapping[str, object], seed: int) -> list[str]:
    """Return the command that trains on rows of a file, or goes on where it was stopped."""
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    named = ["--policy", str(policy), "--data", str(data), "--out", str(out), "--seed", str(seed)]
    return [sys.executable, "-m", "palmette", kind, *named, *given]


def train(kind: str, policy: Path, data: Path, out: Path, settings: Mapping[str, object], seed: int) -> None:
    """Train on rows of a file until it is done."""
    subprocess.run(command(kind, policy, data, out, settings, seed), check=True, env=one_thread())


def one_thread() -> dict[str, str]:
    """Return the environment with one thread: sums depend on how many add them up."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def last_checkpoint(run: Path) -> Path:
    """Return the folder of a run's last checkpoint."""
    return max((run / "checkpoints").iterdir())


def copy_model(checkpoint: Path, folder: Path) -> None:
    """Copy the model of a checkpoint, without what only training needs."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("training.safetensors", "manifest.json"))
    print(json.dumps({"model": str(folder), "from": str(checkpoint)}), flush=True)


def solved(results: Sequence[SearchResult]) -> float:
    """Return the share of correct solutions."""
    return sum(result.outcome == "correct" for result in results) / len(results)


def whole_lines(lines: Sequence[str], *, finished: bool) -> tuple[list[str], bool]:
    """Return the lines of a solution that can be labeled, and whether they are all of a finished one.

    They end before an empty line, and before the last line of a solution that was cut.
    """
    whole = [line.rstrip("\n") for line in (lines if finished else lines[:-1])]
    told = whole[: whole.index("")] if "" in whole else whole
    return told, finished and len(told) == len(whole)
