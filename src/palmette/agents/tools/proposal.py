"""Reads a proposal as people and agents write it: configs, commands, requests and code between sentences."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from palmette.agents.subject import Command, Subject, flat, parsed_command
from palmette.agents.tools.allowed import checked_config, config_of_table
from palmette.errors import ConfigError, PalmetteError
from palmette.settings import Config
from palmette.units import one_line
from palmette.yaml_file import parse_override

_FENCE = re.compile(r"```(\w*)[^\n]*\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(
    r"^\s*(?:\$ )?((?:[A-Z_]+=\S+ )*(?:palmette|vllm|python3?|accelerate|torchrun|sglang|trl|CUDA)\b.*)$", re.M
)
_TABLES = frozenset(Config.model_fields)
_FLAGS = {
    "policy": "policy.model", "reward": "reward.model", "task": "task.name", "strategy": "search.strategy",
    "width": "search.width", "questions": "task.questions", "seed": "seed", "devices": "memory.devices",
    "embedder": "embedder.model", "updates": "train.updates",
}  # fmt: skip
_MOST_NESTED = 20


class Read:
    """What was read: a subject, and what could not be read with the reason."""

    def __init__(self, subject: Subject, faults: list[str]) -> None:
        self.subject, self.faults = subject, faults


def read_proposal(text: str, root: Path) -> Read:
    """Return what a proposal says as a subject to check; nothing in it is executed or imported."""
    fenced = [(kind.lower(), body) for kind, body in _FENCE.findall(text)]
    blocks, outside = (fenced, _FENCE.sub("\n", text)) if fenced else ([("", text)], "")
    faults: list[str] = []
    config: Config | None = None
    trains = False
    foreign: dict[str, Any] = {}
    requests: list[Mapping[str, Any]] = []
    code: list[str] = []
    for kind, body in blocks:
        table = None if kind in ("bash", "sh", "shell", "console", "python", "py") else _table(body)
        if kind in ("python", "py") or (table is None and _looks_like_code(body)):
            code.append(body)
        elif table is None:
            outside += f"\n{body}"
        elif {"sampling_params", "prompt", "messages", "max_tokens"} & table.keys():
            requests.append(table)
        elif _TABLES & table.keys():
            try:
                config, trains = config_of_table(table, root), "train" in table
            except PalmetteError as error:
                faults.append(str(error))
        else:
            foreign |= flat(table)
    commands = [parsed_command(line) for line in _lines(outside)]
    for command in commands:
        if command.words and Path(command.words[0]).name == "palmette":
            try:
                config, trains = _config_of(command, root), "train" in command.words[1:2] or "train" in command.flags
            except PalmetteError as error:
                faults.append(str(error))
        else:
            foreign |= dict(
                word.split("=", 1) for word in command.words if re.fullmatch(r"[\w.]+=[^=]+", word) and "." in word
            )
    foreign = {key: _typed(value) for key, value in foreign.items()}
    subject = Subject(config, trains, foreign, tuple(commands), tuple(requests), "\n".join(code))
    return Read(subject, [one_line(fault, 400) for fault in faults])


def _lines(text: str) -> Iterator[str]:
    joined = re.sub(r"\\\n\s*", " ", text)
    yield from (match[1] for match in _COMMAND.finditer(joined))


def _table(text: str) -> dict[str, Any] | None:
    """Return a text as a table, if it is YAML or JSON of one."""
    if text.count("&") > _MOST_NESTED:  # Aliases of aliases in YAML can stand for gigabytes.
        return None
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else None


def _looks_like_code(text: str) -> bool:
    return bool(
        re.search(r"^\s*(?:def |import |from \w+ import |[\w.\[\]]+ ?[-+*/]?= ?\S+\(|[\w.]+\.\w+_?\()", text, re.M)
    )


def _config_of(command: Command, root: Path) -> Config:
    """Return the config that the flags of a palmette command make."""
    settings: dict[str, Any] = {}
    for place, word in enumerate(command.words):
        if word == "--set" and place + 1 < len(command.words):
            key, value = parse_override(command.words[place + 1])
            settings[key] = value
    for flag, value in command.flags.items():
        if flag in _FLAGS and value:
            settings[_FLAGS[flag]] = None if (flag, value) == ("reward", "none") else _typed(value)
    if any(word.endswith((".yaml", ".yml")) for word in command.words):
        raise ConfigError("a file of a run is named: give its content in the proposal")
    return checked_config(settings, root)


def _typed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value.strip("'\"")
