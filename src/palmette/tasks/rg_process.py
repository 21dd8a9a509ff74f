"""Runs in a child process: generates the questions of a reasoning-gym generator with a fixed hash seed.

Some generators iterate over sets: with Python's random hash seed they give other questions in every process.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def main() -> None:
    """Read a request from stdin and write one JSON object to stdout."""
    request = json.load(sys.stdin)
    print(json.dumps(generate(request["generator"], request["seed"], request["count"], request.get("options", {}))))


def generate(generator: str, seed: int, count: int, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `questions` as pairs of question and answer, or why there are none.

    `missing`: reasoning-gym cannot be imported; `known`: the names of all generators, if this is none of them; `error`:
    what the generator raised.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        return {"missing": str(error)}
    if generator not in DATASETS:
        return {"known": sorted(DATASETS)}
    try:
        dataset = reasoning_gym.create_dataset(generator, size=count, seed=seed, **(options or {}))
        entries = [dataset[index] for index in range(count)]
    except Exception as error:  # noqa: BLE001 - a generator may raise anything; it is reported by its name
        return {"error": f"{type(error).__name__}: {error}"}
    return {"questions": [(str(entry["question"]), str(entry["answer"])) for entry in entries]}


def fixed_hash_environment() -> dict[str, str]:
    """Return this process's environment with a fixed hash seed and without any other variable named PYTHON..."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "PYTHONHASHSEED": "0"
    }
