"""Parts by name: built-in files, entry points of installed packages, and `package.module:name` of a user's own code."""

import ast
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from palmette.errors import ConfigError
from palmette.units import nearest, one_line

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """A kind of part that users can add.

    `group` is its entry-point group. Every module of `package` that is not in `apart` is a built-in part under its own
    file name, and binds the part to the name `plugin`.
    """

    group: str
    package: str | None = None
    apart: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "strategy": Kind("palmette.strategies", "palmette.search.strategies"),
    "task": Kind("palmette.tasks", "palmette.tasks.sources"),
    "judge": Kind("palmette.judges", "palmette.score.judges"),
    "scorer": Kind("palmette.scorers", "palmette.score.scorers"),
    "backend": Kind("palmette.backends", "palmette.backends", apart=("backend", "chat", "guarded", "scripted")),
    "embedder": Kind("palmette.embedders"),
}


@dataclass(frozen=True)
class Listing:
    """One part that can be named in a config: `source` is palmette or the package that brings it."""

    kind: str
    name: str
    source: str


_objects: dict[tuple[str, str], Any] = {}
"""Parts given as objects to this process, by kind and name."""


MODEL_NAMES = ("seedling", "seedling-ripe", "seedling-prm", "smollm2-135m", "minilm")
"""The models of the zoo: where a model is named, no installed part takes their place."""


def is_reference(name: str) -> bool:
    """Tell whether a name is written as `package.module:name`."""
    return _REFERENCE.fullmatch(name) is not None


def built_ins(kind: str) -> list[str]:
    """Return the names of the parts that palmette brings, without importing any."""
    package = KINDS[kind].package
    if package is None:
        return []
    folder = importlib.import_module(package).__path__
    return sorted(module.name for module in pkgutil.iter_modules(folder) if module.name not in KINDS[kind].apart)


def first_line(kind: str, name: str) -> str:
    """Return the first line of a built-in part's file, without importing it."""
    package = KINDS[kind].package
    assert package is not None
    docstring = ast.get_docstring(ast.parse(files(package).joinpath(f"{name}.py").read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def listings(kind: str) -> list[Listing]:
    """Return every part that can be named: built-in ones, then those of installed packages. Imports none of them."""
    found = [Listing(kind, name, "palmette") for name in built_ins(kind)]
    for entry in _installed(kind):
        found.append(Listing(kind, entry.name, entry.dist.name if entry.dist else "?"))
    return found


def add(kind: str, part: Any) -> str:
    """Make an object known to this process; return the name under which `find` gives it back.

    The name is written as a reference, so that a run's config says where the part came from.
    """
    named = part if isinstance(part, type) or inspect.isroutine(part) else type(part)
    name = stem = f"{named.__module__}:{re.sub(r'[^0-9A-Za-z_.]', '_', named.__qualname__)}"
    count = 1
    while _objects.get((kind, name), part) is not part:
        count += 1
        name = f"{stem}_{count}"
    _objects[kind, name] = part
    return name


def is_own(kind: str, name: str) -> bool:
    """Tell whether a name stands for a part of the user's own: an object given, an entry point, or a reference."""
    if (kind, name) in _objects or is_reference(name):
        return True
    return name not in (*built_ins(kind), *MODEL_NAMES) and any(entry.name == name for entry in _installed(kind))


def find(kind: str, name: str) -> Any:
    """Return a part by its name: an object given to `add`, a built-in, an entry point, or `package.module:name`.

    Importing a user's module runs its code. Raises ConfigError for a name that is none, with the nearest one there is.
    """
    if (kind, name) in _objects:
        return _objects[kind, name]
    if name in built_ins(kind):
        return importlib.import_module(f"{KINDS[kind].package}.{name}").plugin
    for entry in _installed(kind):
        if entry.name == name:
            return _load(kind, name, entry.load)
    if is_reference(name):
        return _load(kind, name, lambda: _referred(name))
    names = [listing.name for listing in listings(kind)]
    near = nearest(name, names)
    hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(names)}." if names else ""
    raise ConfigError(
        f"no {kind} is named {one_line(name, 80)!r}. {hint} One of your own is named package.module:name".strip()
    )


def build(part: Any, **given: Any) -> Any:
    """Return the part itself, or what it builds: a class, or a function with a parameter `settings`, is called.

    It gets those of the `given` arguments that it names.
    """
    if isinstance(part, type) or (inspect.isroutine(part) and "settings" in _parameters(part)):
        return call_by_name(part, **given)
    return part


def call_by_name(function: Callable[..., Any], **given: Any) -> Any:
    """Call a function with those of the `given` arguments that it names, or with all of them if it takes `**`."""
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function(**given)
    return function(**{name: value for name, value in given.items() if name in parameters})


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def _installed(kind: str) -> tuple[EntryPoint, ...]:
    places = tuple((place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.isdir(place))
    return _entry_points(places)[KINDS[kind].group]


@lru_cache(maxsize=1)
def _entry_points(places: tuple[tuple[str, int], ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of our groups by name. Reading them takes 40 ms: again only if `places` have changed."""
    declared: Any = entry_points()
    groups = [kind.group for kind in KINDS.values()]
    return {group: tuple(sorted(declared.select(group=group), key=lambda entry: entry.name)) for group in groups}


def _load(kind: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # A script without a main guard ends the process when it is imported.
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(f"{kind} {name} cannot be imported: {told}") from error


def _referred(name: str) -> Any:
    module, _, path = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # Last: a file beside the run cannot take the place of an installed module.
    part: Any = importlib.import_module(module)
    for attribute in path.split("."):
        if not hasattr(part, attribute):
            near = nearest(attribute, [known for known in dir(part) if not known.startswith("_")])
            hint = f". Did you mean {near!r}?" if near else ""
            raise ConfigError(f"{name}: {module} has no {attribute!r}{hint}")
        part = getattr(part, attribute)
    return part
