"""Runs a snippet of code on inputs by their names: a function is called, a fragment is executed. In the child alone."""

import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

_FRAGMENT = "<snippet>"
_MOST_VALUES = 4096


class _Stand:
    """Stands for objects such as `self` and `tokenizer`: an attribute is the input of that name, or itself."""

    def __init__(self, named: Mapping[str, Any], texts: list[str]) -> None:
        self._named, self._texts = named, texts

    def __getattr__(self, name: str) -> Any:
        return self._named.get(name.lower(), self)

    def batch_decode(self, *_: Any, **__: Any) -> list[str]:
        """Return the texts that a tokenizer would decode."""
        return list(self._texts)

    def decode(self, tokens: Any, *_: Any, **__: Any) -> str:
        """Return one text: that at this place, or the first."""
        return tokens if isinstance(tokens, str) else self._texts[0]


class _Space(dict[str, Any]):
    """The names that code sees. Asked whether some kernel or package is available, it is told that none is."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("is_") and name.endswith("_available"):
            return lambda *_: False
        raise KeyError(name)


def run_snippet(code: str, inputs: Mapping[str, Any], aliases: Mapping[str, list[str]], kind: str) -> list[Any]:
    """Return what a snippet makes of the inputs, as a flat list of numbers or texts.

    `kind` is how lists are given: as torch tensors, numpy arrays or plain lists. Raises whatever the snippet raises,
    and LookupError where the snippet needs something that is not among the inputs.
    """
    tree = ast.parse(textwrap.dedent(code))
    named = {alias: _given(inputs[name], kind) for name, known in aliases.items() for alias in (name, *known)}
    named |= _grouped(inputs, kind)
    stand = _Stand({**named, "pad_token": inputs.get("pad")}, list(inputs.get("texts", ())))
    space = _Space({"self": stand, "args": stand, "config": stand, "tokenizer": stand, **_libraries(kind)})
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if functions:
        exec(_compiled(tree), space)  # noqa: S102 - behind walls, in a process of its own
        return _flat(_called(space[functions[-1]], named, stand))
    space |= {name: value for name, value in named.items() if name not in space}
    return _flat(_executed(tree, space))


def _libraries(kind: str) -> dict[str, Any]:
    """Return the libraries that snippets take for granted; torch only where it was loaded, for tensors."""
    import math

    import numpy

    found: dict[str, Any] = {"math": math, "np": numpy, "numpy": numpy}
    if kind == "torch":
        import torch

        found |= {"torch": torch, "F": torch.nn.functional, "nn": torch.nn}
    return found


def _given(value: Any, kind: str) -> Any:
    if not isinstance(value, list) or (value and isinstance(value[0], str)) or kind == "list":
        return value
    if kind == "torch":
        import torch

        whole = torch.tensor(value)
        return whole.double() if whole.is_floating_point() else whole
    import numpy

    return numpy.array(value)


def _grouped(inputs: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return means and deviations of groups under the names that trainers give them, one for each reward."""
    if "group" not in inputs:
        return {}
    rewards, size = inputs["rewards"], inputs["group"]
    means, deviations = [], []
    for start in range(0, len(rewards), size):
        group = rewards[start : start + size]
        mean = sum(group) / size
        means += [mean] * size
        deviations += [(sum((reward - mean) ** 2 for reward in group) / (size - 1)) ** 0.5] * size
    return {
        **dict.fromkeys(("mean_grouped_rewards", "mean", "group_mean", "mean_rewards"), _given(means, kind)),
        **dict.fromkeys(("std_grouped_rewards", "std", "group_std", "std_rewards"), _given(deviations, kind)),
    }


def _called(function: Callable[..., Any], named: Mapping[str, Any], stand: _Stand) -> Any:
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name.lower() in named:
            given[name] = named[name.lower()]
        elif name in ("self", "args", "config", "tokenizer", "processing_class", "trainer"):
            given[name] = stand
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            raise LookupError(f"{function.__name__} has a parameter {name!r}: nothing is known by that name")
    return function(**given)


def _executed(tree: ast.Module, space: dict[str, Any]) -> Any:
    """Execute a fragment; return its last expression, or what its last assignment is about."""
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Return) and last.value is not None:
        last = ast.copy_location(ast.Expr(last.value), last)
        tree.body[-1] = last
    if isinstance(last, ast.Expr):
        exec(_compiled(ast.Module(tree.body[:-1], [])), space)  # noqa: S102
        return eval(compile(ast.Expression(last.value), _FRAGMENT, "eval"), space)  # noqa: S307
    exec(_compiled(tree), space)  # noqa: S102
    name = _last_name(tree.body)
    if name in space:
        return space[name]
    raise LookupError("the snippet ends with no value: end it with a function, an assignment or an expression")


def _compiled(tree: ast.Module) -> Any:
    """Return code whose annotations are not evaluated: those of a library's function name what is not there."""
    return compile(tree, _FRAGMENT, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)


def _last_name(body: list[ast.stmt]) -> str | None:
    """Return the name that the last statement assigns, inside of it where it is an `if` or a loop."""
    if not body:
        return None
    last = body[-1]
    inner = getattr(last, "body", None)
    if isinstance(inner, list):
        return _last_name(inner)
    target = getattr(last, "target", None) or next(iter(getattr(last, "targets", ())), None)
    return target.id if isinstance(target, ast.Name) else None


def _flat(value: Any) -> list[Any]:
    if hasattr(value, "detach"):
        value = (
            value.detach().double().flatten().tolist() if value.dtype.is_floating_point else value.flatten().tolist()
        )
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        flat = [item for part in value for item in _flat(part)]
        if len(flat) > _MOST_VALUES:
            raise LookupError(f"the snippet returns {len(flat)} values")
        return flat
    return [value if isinstance(value, str) else float(value)]
