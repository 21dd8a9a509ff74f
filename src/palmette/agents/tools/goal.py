"""Reads a goal in words: which model, which devices, a search or training, and with what."""

import re
from typing import Any

from palmette import registry
from palmette.planner.models.find_shape import known_configs
from palmette.zoo.catalog import ENTRIES

_GPUS = {
    "b200": 180, "h200": 141, "h100": 80, "a100-40": 40, "a100": 80, "a800": 80, "h800": 80, "h20": 96, "a6000": 48,
    "l40s": 48, "l40": 48, "a40": 48, "6000 ada": 48, "5090": 32, "v100": 32, "a10g": 24, "a10": 24, "l4": 24,
    "4090": 24, "3090": 24, "a5000": 24, "4080": 16, "t4": 16, "3080": 10, "2080": 11,
}  # fmt: skip
"""GiB of GPUs by the names that people write."""

_TRAINS = re.compile(
    r"\b(?:train\w*|grpo|ppo|rl|rlhf|rlvr|fine-?tun\w*|reinforce\w*|dapo|gspo|rloo|cispo|learn\w*)\b", re.I
)
_SIZE = re.compile(r"(?:(\d+)\s*[x*]\s*)?(\d+(?:\.\d+)?)\s*(GiB|GB|G)\b(\s*(?:of )?(?:ram|host|cpu|system))?", re.I)
_NUMBERED = re.compile(r"\b(?:width|n(?=\s*[=:])|samples|branches|generations|responses)\s*(?:of|=|:)?\s*(\d+)", re.I)
_RATE = re.compile(r"(?:learning[ _-]?rate|\blr)\s*(?:of|=|:)?\s*(\d+(?:\.\d+)?(?:e-?\d+)?)", re.I)


def settings_of(goal: str) -> tuple[dict[str, Any], bool, list[str]]:
    """Return settings by dotted key, whether it is training, and what was understood, in words."""
    trains = bool(_TRAINS.search(goal)) and "reward model" not in goal.lower()[:20]
    settings: dict[str, Any] = {}
    told: list[str] = []
    models = _models(goal)
    if models:
        settings["policy.model"] = models[0]
        told.append(f"policy {models[0]}")
        scorers = [name for name in models[1:] if re.search(r"prm|reward|shepherd", name, re.I)]
        if not trains or scorers:
            settings["reward.model"] = scorers[0] if scorers else None
    devices = _devices(goal)
    if devices:
        settings["memory.devices"] = devices
        told.append(f"devices {devices}")
    algorithm = next((name for name in registry.built_ins("algorithm") if name.replace("_", " ") in _plain(goal)), None)
    if trains and algorithm:
        settings["train.algorithm"] = algorithm
    strategy = next((name for name in registry.built_ins("strategy") if name.replace("_", " ") in _plain(goal)), None)
    if strategy and not trains:
        settings["search.strategy"] = strategy
    if "lora" in goal.lower() and trains:
        settings["train.method"] = "lora"
    for pattern, key, kind in ((_NUMBERED, "search.width", int), (_RATE, "train.learning_rate", float)):
        match = pattern.search(goal)
        if match and (key == "search.width" or trains):
            settings[key] = kind(match[1])
    return settings, trains, [*told, "training" if trains else "search"]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower())


def _models(goal: str) -> list[str]:
    """Return the known models that a text names, in its order; the longest name counts where one begins another."""
    known = {name: name for name in ENTRIES} | {name.partition("/")[2]: name for name in known_configs()}
    text, found = goal.lower(), []
    for short in sorted(known, key=len, reverse=True):
        at = text.find(short.lower())
        if short and at >= 0:
            found.append((at, known[short]))
            text = text.replace(short.lower(), " " * len(short))
    return [name for _, name in sorted(found)]


def _devices(goal: str) -> str | None:
    gpus: list[str] = []
    host = ""
    for match in _SIZE.finditer(goal):
        count, size, _, of_host = match.groups()
        if of_host:
            host = f"cpu:{size}GiB"
        else:
            gpus.append(f"{count or 1}x{size}GiB")
    text = goal.lower()
    for name, gib in _GPUS.items():
        named = re.search(rf"(?:(\d+)\s*[x*]?\s*)?(?:nvidia |rtx )?\b{name}\b", text)
        if named and not gpus:
            gpus.append(f"{named[1] or 1}x{gib}GiB")
    if "cpu" in text and not gpus and not host:
        return None
    return ",".join([*gpus[:1], *([host] if host else [])]) or None
