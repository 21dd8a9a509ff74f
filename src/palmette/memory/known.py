"""The shapes of well-known public models: the numbers of their config.json files, and nothing else."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def known_configs() -> dict[str, dict[str, Any]]:
    """Return config values by lowercase name; a fine-tune stands beside the model whose numbers it has."""
    entries = json.loads(files("palmette.memory").joinpath("known.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        values = {key: value for key, value in entry.items() if key != "names"}
        for name in entry["names"]:
            assert name.lower() not in found, f"{name} stands twice"
            found[name.lower()] = values
    return found


def known_config(name: str) -> dict[str, Any] | None:
    """Return the config values of a public model by its hub id, or by the part after the slash; None if unknown."""
    configs = known_configs()
    wanted = name.lower()
    if wanted in configs:
        return configs[wanted]
    return next((values for full, values in configs.items() if full.partition("/")[2] == wanted), None)
