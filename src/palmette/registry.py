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
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

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
    "backend": Kind(
        "palmette.backends",
        "palmette.backends",
        apart=("backend", "blocking", "chat", "guarded", "scripted", "servers", "step_text"),
    ),
    "embedder": Kind("palmette.embedders"),
    "algorithm": Kind(
        "palmette.algorithms", "palmette.train.algorithms", apart=("aggregation", "algorithm", "gae", "statistics")
    ),
    "credit": Kind("palmette.credits", "palmette.train.credit", apart=("credit", "tree_samples", "values")),
}


@dataclass(frozen=True)
class Listing:
    """One part that can be named in a config: `source` is palmette or the package that brings it."""

    kind: str
    name: str
    source: str


@dataclass(frozen=True, eq=False)
class Given:
    """An object given as a part, and the name under which `find` returns it for as long as somebody holds this."""

    name: str
    part: Any


_objects: WeakValueDictionary[tuple[str, str], Given] = WeakValueDictionary()
"""Objects that cannot be imported by name, by kind and name."""

_OBJECT = re.compile(r"[\w.]+:[\w.<>]+(\(\))?(#\d+)?")
_numbers = count(1)


MODEL_NAMES = (
    "seedling", "seedling-ripe", "seedling-prm", "seedling-words", "seedling-words-prm", "sapling",
    "sapling-prm", "smollm2-135m", "minilm",
)  # fmt: skip
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


def add(kind: str, part: Any) -> Given:
    """Give an object a name that says where it came from.

    What its module has under its name is named like that, `module:name`, and found by import. Any other object gets a
    number, `module:Class()#1`, so that no two share a name.
    """
    named = part if isinstance(part, type) or inspect.isroutine(part) else type(part)
    name = f"{named.__module__}:{named.__qualname__}"
    held: Any = sys.modules.get(named.__module__)
    for attribute in named.__qualname__.split("."):
        held = getattr(held, attribute, None)
    if held is part and is_reference(name):
        return Given(name, part)
    called = "" if isinstance(part, type) or inspect.isfunction(part) else "()"
    given = Given(f"{name}{called}#{next(_numbers)}", part)
    _objects[kind, given.name] = given
    return given


def is_object(name: str) -> bool:
    """Tell whether a name was made for an object that cannot be imported, in this process or in another."""
    return _OBJECT.fullmatch(name) is not None and any(mark in name for mark in ("<", "(", "#"))


def lasting(name: str) -> str:
    """Return a name without the number that tells the objects of one process apart: the name that a run records."""
    return name.partition("#")[0] if is_object(name) else name


def is_own(kind: str, name: str) -> bool:
    """Tell whether a name stands for a part of the user's own: an object given, an entry point, or a reference."""
    if is_object(name) or is_reference(name):
        return True
    return name not in (*built_ins(kind), *MODEL_NAMES) and any(entry.name == name for entry in _installed(kind))


def find(kind: str, name: str) -> Any:
    """Return a part by its name: an object given to `add`, a built-in, an entry point, or `package.module:name`.

    Importing a user's module runs its code. Raises ConfigError for a name that is none, with the nearest one there is.
    """
    given = _objects.get((kind, name))
    if given is not None:
        return given.part
    if is_object(name):
        raise ConfigError(
            f"{kind} {one_line(lasting(name), 80)} was given from Python as an object, which cannot be imported: "
            f"give it again, to a Searcher with the same settings"
        )
    if name in built_ins(kind):
        return importlib.import_module(f"{KINDS[kind].package}.{name}").plugin
    for entry in _installed(kind):
        if entry.name == name:
            return _load(kind, name, entry.load)
    if is_reference(name):
        return find_reference(kind, name)
    names = [listing.name for listing in listings(kind)]
    near = nearest(name, names)
    hint = f"Did you mean {near!r}?" if near else f"There are {', '.join(names)}." if names else ""
    raise ConfigError(
        f"no {kind} is named {one_line(name, 80)!r}. {hint} One of your own is named package.module:name".strip()
    )


def find_reference(kind: str, name: str) -> Any:
    """Return what `package.module:name` refers to. Raises ConfigError, with `kind`, if it cannot be imported."""
    return _load(kind, name, lambda: _referred(name))


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
