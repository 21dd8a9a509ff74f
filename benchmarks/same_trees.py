"""Ten seeded searches by two source trees, their tree events compared byte for byte.

git worktree add ../before COMMIT
python -m benchmarks.same_trees --before ../before/src
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "src"
TREE_EVENTS = ("question_started", "wave_done", "question_finished")
_SHORT = ("--questions", "6", "--seed", "11")
RUNS: dict[str, tuple[str, ...]] = {
    "best_of_n": ("--strategy", "best_of_n", "--width", "16", *_SHORT),
    "best_of_n without scores": ("--strategy", "best_of_n", "--reward", "none", "--width", "8", *_SHORT),
    "beam": ("--strategy", "beam", "--width", "16", *_SHORT),
    "dvts": ("--strategy", "dvts", "--width", "16", *_SHORT),
    "rebase": ("--strategy", "rebase", "--width", "16", *_SHORT),
    "rebase by a scalar head": ("--strategy", "rebase", "--reward", "seedling-prm", "--width", "32", *_SHORT),
    "ets": ("--strategy", "ets", "--width", "32", *_SHORT),
    "ets by tokens without diversity": (
        "--strategy", "ets", "--width", "16", "--reward", "seedling-prm", *_SHORT,
        "--set", "search.kv_cost=tokens", "--set", "search.lambda_diversity=0", "--set", "search.questions_in_flight=3",
    ),
    "ets within a budget": ("--strategy", "ets", "--width", "32", *_SHORT, "--set", "search.kv_budget=6MiB"),
    "ets of smollm2 by likelihood": (
        "--policy", "smollm2-135m", "--reward", "smollm2-135m", "--set", "reward.score=likelihood",
        "--strategy", "ets", "--width", "4", "--task", "rg:chain_sum", "--questions", "2", "--seed", "11",
        "--set", "search.total_tokens=64", "--set", "search.step_tokens=32", "--set", "policy.top_p=0.95",
    ),
}  # fmt: skip


def main() -> None:
    """Run all searches by both trees; print a line for each and exit 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the src folder of the commit to compare with")
    parser.add_argument("--keep", type=Path, help="folder in which the runs of the commit before are kept")
    chosen = parser.parse_args()
    differs = 0
    with tempfile.TemporaryDirectory() as scratch:
        for place, (name, flags) in enumerate(RUNS.items()):
            kept = (chosen.keep or Path(scratch)) / f"before-{place}"
            if not (kept / "events.jsonl").exists():
                _search(chosen.before.resolve(), kept, flags)
            _search(HERE, Path(scratch) / f"after-{place}", flags)
            before, after = tree_events(kept), tree_events(Path(scratch) / f"after-{place}")
            added = sorted({key for old, new in zip(before, after, strict=False) for key in new.keys() - old.keys()})
            same = len(before) == len(after) and all(map(_repeats, before, after))
            differs += not same
            print(f"{name}: {len(before)} events {'equal' if same else 'DIFFER'}; new keys: {', '.join(added) or '-'}")
    sys.exit(differs > 0)


def tree_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run that tell of its trees."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] in TREE_EVENTS]


def _repeats(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Tell whether every key of the old event is in the new one with the same bytes, in the same order."""
    kept = {key: value for key, value in new.items() if key in old}
    return json.dumps(kept) == json.dumps(old)


def _search(source: Path, folder: Path, flags: Sequence[str]) -> None:
    # One thread on both sides: how a sum is shared out among threads moves its last bits.
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "palmette", "search", *flags, "--out", str(folder), "--json"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
