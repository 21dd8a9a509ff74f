"""Finds the practices that come with palmette: all of them, or one by its id."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from pydantic import ValidationError

from palmette.errors import ConfigError
from palmette.practices.practice import Practice
from palmette.units import nearest, one_line
from palmette.yaml_file import read_yaml

_ENDING = ".yaml"


@cache
def practices() -> Mapping[str, Practice]:
    """Return all practices by id."""
    with as_file(files("palmette.practices")) as folder:
        read = [_read(path) for path in sorted(folder.glob(f"*{_ENDING}"))]
    return {practice.id: practice for practice in read}


def practice(id: str) -> Practice:
    """Return a practice by its id; raise ConfigError with the nearest one where there is none."""
    known = practices()
    if id in known:
        return known[id]
    guess = nearest(id, known)
    hint = f"Did you mean {guess!r}?" if guess else f"There are {', '.join(known)}."
    raise ConfigError(f"there is no practice {one_line(id, 80)!r}. {hint}")


def page(practice: Practice) -> str:
    """Return a practice as a page in Markdown."""
    keys = "".join(f"`{key}`, " for key in practice.settings).removesuffix(", ")
    return "\n".join(
        [
            f"### {practice.id}",
            "",
            f"**{practice.rule}**",
            "",
            practice.why,
            "",
            f"- Measured: {practice.measured.number} (`{practice.measured.command}`)",
            f"- Source: {practice.source}",
            f"- Does not apply: {practice.not_when}",
            *([f"- Settings: {keys}"] if keys else []),
            f"- Checked by `{practice.check.name}`",
            "",
        ]
    )


def _read(path: Path) -> Practice:
    try:
        read = Practice.model_validate(read_yaml(path))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError(f"{path} is no practice: {one_line('; '.join(faults), 400)}") from error
    if read.id != path.name.removesuffix(_ENDING):
        raise ConfigError(f"{path}: its id is {read.id!r}, which is not its name")
    return read
