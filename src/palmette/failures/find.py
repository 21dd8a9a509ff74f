"""Reads the signatures that come with palmette, and the patterns of facts that any log may have."""

import re
from functools import cache
from importlib.resources import as_file, files

from palmette.failures.signature import Signature
from palmette.yaml_file import read_yaml

_FACTS = "facts.yaml"


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all signatures, in the order of their files."""
    with as_file(files("palmette.failures")) as folder:
        tables = [read_yaml(path) for path in sorted(folder.glob("*.yaml")) if path.name != _FACTS]
    return tuple(Signature.model_validate({"id": id, **values}) for table in tables for id, values in table.items())


@cache
def fact_patterns() -> dict[str, tuple[re.Pattern[str], ...]]:
    """Return for each fact the patterns that find it, the best first; a pattern has the fact as its only group."""
    with as_file(files("palmette.failures")) as folder:
        table = read_yaml(folder / _FACTS)
    return {name: tuple(re.compile(text, re.IGNORECASE) for text in texts) for name, texts in table.items()}
