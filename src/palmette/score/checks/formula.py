"""Reads literals and formulas without running them, in the place of Python's `eval` and sympy's `parse_expr`.

Both of those run what they are given: `exec(...)`, attributes, calls of anything. Here a text is parsed to Python's
syntax tree, and only the nodes named below have a meaning; all others raise SyntaxError.
"""

import ast
import importlib
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.BitAnd: operator.and_,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Invert: operator.invert,
}  # fmt: skip
_FUNCTIONS = (
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "exp", "log", "ln", "sqrt", "cbrt", "Abs", "sign", "floor", "ceiling", "factorial", "erf", "Rational",
)  # fmt: skip
_CONSTANTS = ("pi", "E", "I", "oo")


def literal(text: str, *_: Any) -> Any:
    """Return the value of a literal or of arithmetic with numbers, as `eval` would. Raises SyntaxError for other text.

    Takes the further arguments of `eval` and ignores them: there are no names to look up.
    """
    return _literal(_parsed(text))


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_literal(item) for item in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_literal(key): _literal(node.values[place]) for place, key in enumerate(node.keys) if key is not None}
    if isinstance(node, ast.BinOp):
        return (
            _BINARY[type(node.op)](_number(node.left), _number(node.right)) if type(node.op) in _BINARY else _no(node)
        )
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_number(node.operand)) if type(node.op) in _UNARY else _no(node)
    return _no(node)


def _number(node: ast.expr) -> Any:
    """Return the value of an operand. Texts and lists are none: `"%1000000000d" % 1` would be a gigabyte."""
    value = _literal(node)
    return value if isinstance(value, int | float | complex) else _no(node)


def expression(text: str, local_dict: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> Any:
    """Return the sympy expression in `text`. Raises SyntaxError for what is no formula.

    Names stand for `local_dict`'s values, for pi, E, I and oo, else for symbols; calls only for the functions of
    `_FUNCTIONS`. Takes the further arguments of `parse_expr` and ignores them.
    """
    return _expression(_parsed(text), importlib.import_module("sympy"), local_dict or {}, text.strip())


def _expression(node: ast.expr, sympy: Any, names: Mapping[str, Any], text: str) -> Any:
    def read(inner: ast.expr) -> Any:
        return _expression(inner, sympy, names, text)

    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sympy.Integer(node.value)
    if isinstance(node, ast.Constant) and type(node.value) is float:
        return sympy.Float(ast.get_source_segment(text, node))  # the text: it tells how many digits count
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        return getattr(sympy, node.id) if node.id in _CONSTANTS else sympy.Symbol(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow | ast.Mod):
        return _BINARY[type(node.op)](read(node.left), read(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        return _UNARY[type(node.op)](read(node.operand))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        name = "Abs" if node.func.id == "abs" else node.func.id
        return getattr(sympy, name)(*map(read, node.args)) if name in _FUNCTIONS else _no(node)
    return _no(node)


def _parsed(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise SyntaxError(f"a {type(text).__name__} is no text")
    return ast.parse(text.strip(), mode="eval").body


def _no(node: ast.AST) -> Any:
    raise SyntaxError(f"neither a literal nor a formula: {type(node).__name__}")


def take_the_place_of_eval(package: str) -> None:
    """Have every module of `package` read with `literal` where it calls `eval`, and all of sympy with `expression`.

    sympy's own `sympify` of a text goes through `parse_expr` too.
    """
    parser: Any = importlib.import_module("sympy.parsing.sympy_parser")
    original = parser.parse_expr
    for name, module in list(sys.modules.items()):
        for known, value in list(vars(module).items()):
            if value is original:
                setattr(module, known, expression)
        if name.partition(".")[0] == package:
            setattr(module, "eval", literal)  # noqa: B010  a name that every function of the module finds first
