"""The process that deals a reasoning-gym generator's questions, with a fixed order of hashes.

Some generators go through sets: with Python's random hash seed the same seed gives other questions in every process.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    """Read a request from stdin, answer with one JSON object on stdout."""
    request = json.load(sys.stdin)
    print(json.dumps(deal(request["generator"], request["seed"], request["count"])))


def deal(generator: str, seed: int, count: int) -> dict[str, Any]:
    """Return `questions` as pairs of question and answer, or `known` names, or the `error` that came up."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        return {"missing": str(error)}
    if generator not in DATASETS:
        return {"known": sorted(DATASETS)}
    try:
        dataset = reasoning_gym.create_dataset(generator, size=count, seed=seed)
        entries = [dataset[index] for index in range(count)]
    except Exception as error:  # noqa: BLE001 - a generator may raise anything; its name goes to the user
        return {"error": f"{type(error).__name__}: {error}"}
    return {"questions": [(str(entry["question"]), str(entry["answer"])) for entry in entries]}


def fixed_hashes() -> dict[str, str]:
    """Return an environment in which sets have the same order in every process, and nothing else of Python's is set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "PYTHONHASHSEED": "0"
    }
