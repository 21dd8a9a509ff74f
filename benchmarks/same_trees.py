"""Ten seeded searches by two source trees, the tree events of each question compared byte for byte.

git worktree add ../before COMMIT
python -m benchmarks.same_trees --before ../before/src

The order between questions may differ. Log-probabilities may differ by one in their last recorded digit, which depends
on what else was in the batch. KV tokens are compared if both sides count them as held. Everything else has to be the
same.
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
LAST_DIGIT = 1.01e-4
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
    parser.add_argument(
        "--named-by-order", action="store_true", help="the commit before names best_of_n's nodes by wave"
    )
    chosen = parser.parse_args()
    differs = 0
    with tempfile.TemporaryDirectory() as scratch:
        for place, (name, flags) in enumerate(RUNS.items()):
            kept = (chosen.keep or Path(scratch)) / f"before-{place}"
            if not (kept / "events.jsonl").exists():
                _search(chosen.before.resolve(), kept, flags)
            _search(HERE, Path(scratch) / f"after-{place}", flags)
            before, after = tree_events(kept), tree_events(Path(scratch) / f"after-{place}")
            is_renamed = chosen.named_by_order and "best_of_n" in flags
            if is_renamed:
                before, after = _until_a_branch_ends(before), _until_a_branch_ends(after)
            same = _all_repeat(before, after)
            differs += not same
            events = sum(map(len, before.values()))
            told = "equal" if same else "DIFFER"
            until = ", up to the first end of a branch of each question" if is_renamed else ""
            print(f"{name}: {events} events {told}{until}", flush=True)
    sys.exit(differs > 0)


def same_trees(before: Path, after: Path) -> bool:
    """Tell whether two runs have grown the same trees, by their events."""
    return _all_repeat(tree_events(before), tree_events(after))


def _all_repeat(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> bool:
    return before.keys() == after.keys() and all(_repeats(before[name], after[name]) for name in before)


def tree_events(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the events of a run that tell of its trees, by question."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[dict[str, Any]]] = {}
    for event in map(json.loads, lines):
        if event["kind"] in TREE_EVENTS:
            found.setdefault(event["question"], []).append(event)
    return found


def _until_a_branch_ends(trees: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the events of each question up to the wave in which a branch ends: seeds after it are other ones."""
    cut: dict[str, list[dict[str, Any]]] = {}
    for question, events in trees.items():
        ends = [place for place, event in enumerate(events) if _has_an_end(event)]
        cut[question] = events[: ends[0] + 1] if ends else events
    return cut


def _has_an_end(event: dict[str, Any]) -> bool:
    return event["kind"] == "wave_done" and len(event["children"]) < len(event["nodes"])


def _repeats(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> bool:
    """Tell whether every key of the old events is in the new ones with the same bytes, in the same order."""
    if len(old) != len(new):
        return False
    if not all(event.get("kv_as_held") for event in old if event["kind"] != "question_started"):
        old, new = _without_kv(old), _without_kv(new)
    kept = [
        {key: value for key, value in after.items() if key in before} for before, after in zip(old, new, strict=True)
    ]
    if json.dumps([_without_logprobs(event) for event in kept]) != json.dumps(
        [_without_logprobs(event) for event in old]
    ):
        return False
    pairs = zip(_logprobs(old), _logprobs(kept), strict=True)
    return all(abs(before - after) < LAST_DIGIT for before, after in pairs)


def _without_kv(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if "kv_" not in key} for event in events]


def _without_logprobs(event: dict[str, Any]) -> dict[str, Any]:
    nodes = [{**node, "logprobs": len(node["logprobs"])} for node in event.get("nodes", [])]
    return {**event, "nodes": nodes} if nodes else event


def _logprobs(events: Sequence[dict[str, Any]]) -> list[float]:
    return [logprob for event in events for node in event.get("nodes", []) for logprob in node["logprobs"]]


def _search(source: Path, folder: Path, flags: Sequence[str]) -> None:
    # One thread on both sides: how a sum is shared out among threads moves its last bits.
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "palmette", "search", *flags, "--out", str(folder), "--json"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
