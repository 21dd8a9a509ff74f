"""The tables of settings in docs/algorithms.md, from the code. `python -m tests.algorithms_page` writes them."""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from palmette import registry
from palmette.train.algorithms.algorithm import AlgorithmSettings, ClipSettings

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
_TABLES = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Return a table of what algorithms can be told, and one of the ways to credit.

    What an algorithm shares with others, default and source included, stands once.
    """
    shared = [("all", AlgorithmSettings), ("all with a clip", ClipSettings)]
    algorithms = [(name, registry.find("algorithm", name).Settings) for name in registry.built_ins("algorithm")]
    credits = [(name, registry.find("credit", name).Settings) for name in registry.built_ins("credit")]
    return f"{_table('algorithm', [*shared, *algorithms])}\n{_table('credit', credits)}"


def listed() -> str:
    """Return the tables as the page has them."""
    found = _TABLES.search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE} has no place for its settings"
    return found[0]


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(_TABLES.sub(lambda _: tables(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _table(title: str, parts: list[tuple[str, type[BaseModel]]]) -> str:
    lines = [f"| {title} | key | default | meaning; source |", "|---|---|---|---|"]
    told: set[tuple[str, str, str]] = set()
    for name, model in parts:
        for key, field in model.model_fields.items():
            row = (key, _shown(field.default), field.description or "")
            if (name.startswith("all") or row not in told) and not (name == "all with a clip" and row in told):
                lines.append(f"| `{name}` | `train.{key}` | {row[1]} | {row[2]} |".replace("| `all`", "| all"))
            if name.startswith("all") or title == "credit":
                told.add(row)
    return "\n".join(lines).replace("`all with a clip`", "all with a clip") + "\n"


def _shown(default: Any) -> str:
    value = to_jsonable_python(default)
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    main()
