"""YAML as people write it: files that hold a table, and single values of the command line."""

import re
from pathlib import Path
from typing import Any

import yaml

from palmette.errors import ConfigError


def parse_override(text: str) -> tuple[str, Any]:
    """Split `search.width=64` into its key and its value, read as YAML reads it."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as KEY=VALUE, for example --set search.width=64")
    try:
        parsed = _parse_yaml(value)
        # Only these can be tables or lists: elsewhere {question} is meant as text.
        is_text = isinstance(parsed, dict | list) and not key.strip().startswith(
            ("search.", "train.", "task.generator")
        )
        return key.strip(), value if is_text else parsed
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError):
        raise ConfigError(f"--set {text}: the value is not valid YAML; put quotes around text") from None


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-3 is a number, and a key given twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a table; raise on a key that stands twice."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the table that a YAML file holds; raise ConfigError where it holds none."""
    try:
        values = _parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: nested too deep") from None
    except (yaml.YAMLError, ValueError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: not valid YAML{place}: {getattr(error, 'problem', None) or error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a table of keys, this file holds a {type(values).__name__}")
    return values
