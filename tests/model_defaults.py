"""What transformers takes for keys that a config.json lacks. `python -m tests.model_defaults` writes it anew."""

import dataclasses
import json
import re
from typing import Any

from palmette.planner.models.families import FAMILIES
from palmette.planner.models.notation import BASE
from palmette.planner.models.tensors import RULE_KEYS
from tests.architecture import PACKAGE

FILE = PACKAGE / "planner" / "models" / "defaults.json"
_NEVER = ("hidden_size", "num_hidden_layers", "n_embd", "n_layer", "d_model", "n_layers", "sliding_window")


def declared_keys(family: str) -> set[str]:
    """Return the keys of a config.json that a family's numbers are read from."""
    texts = " ".join({**BASE, **FAMILIES[family].sizes}.values())
    return {key for key in re.findall(r"\w{2,}", texts) if not key.isdecimal()}


def defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of the config classes of all families, for the keys that the planner reads."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found = {}
    for family in FAMILIES:
        fields = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[family])}
        wanted = sorted((declared_keys(family) | set(RULE_KEYS)) - set(_NEVER))
        found[family] = {key: fields[key] for key in wanted if isinstance(fields.get(key), int)}
    return found


def written() -> str:
    """Return the file's text: a line for each family."""
    lines = [f'"{family}": {json.dumps(values)}' for family, values in defaults().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
