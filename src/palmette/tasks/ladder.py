"""Generates and checks `ladder` problems: integer expressions in four grades of difficulty.

A problem is an expression. A solution reduces one operation on each line; the result of the last line is the answer:

    (3+4)*2-5      3+4=7
                   7*2=14
                   14-5=9
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]
Token = int | str

_LINE = re.compile(r"(-?\d{1,9})([+*-])(-?\d{1,9})=(-?\d{1,9})", re.ASCII)
_TOKEN = re.compile(r"\d+|[-+*()]", re.ASCII)


@dataclass(frozen=True)
class Grade:
    """The limits of one difficulty: operations in a problem, terms, values of subresults, operations in a bracket."""

    operations: range
    terms: range
    values: range
    bracket_operations: int


GRADES: dict[int, Grade] = {
    1: Grade(range(1, 4), terms=range(2, 10), values=range(51), bracket_operations=1),
    2: Grade(range(4, 8), terms=range(2, 25), values=range(100), bracket_operations=2),
    3: Grade(range(8, 15), terms=range(2, 25), values=range(100), bracket_operations=2),
    4: Grade(range(15, 21), terms=range(2, 41), values=range(-199, 200), bracket_operations=3),
}
DEFAULT_GRADE = 3


@dataclass(frozen=True)
class Problem:
    """An expression, the lines that reduce it (always the leftmost legal operation) and its value."""

    expression: str
    lines: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class _Term:
    text: str
    value: int
    binding: int  # precedence: 3 number or bracket, 2 product, 1 sum or difference


def problems(grade: int, split: Split, seed: int) -> Iterator[Problem]:
    """Yield problems without end, the same ones for the same arguments. No expression is in both splits."""
    shape = GRADES[grade]
    generator = random.Random(f"ladder {grade} {split} {seed}")
    while True:
        expression = _grow(generator, shape, generator.choice(shape.operations))
        if expression is not None and split_of(expression) == split:
            yield solve(expression)


def split_of(expression: str) -> Split:
    """Return the split of an expression, by its hash: one in ten belongs to `test`."""
    digest = hashlib.sha256(expression.encode()).digest()
    return "test" if digest[0] % 10 == 0 else "train"


def solve(expression: str) -> Problem:
    """Return the problem with its solution: the leftmost legal operation is reduced until one number is left."""
    state = parse(expression)
    lines = []
    while len(state) > 1:
        lines.append(right_lines(state)[0])
        state = follow(state, lines[-1])[1] or ()
    value = state[0]
    assert isinstance(value, int)
    return Problem(expression, tuple(lines), value)


def parse(expression: str) -> tuple[Token, ...]:
    """Return the tokens of an expression: integers, signs and brackets."""
    return tuple(int(token) if token.isdigit() else token for token in _TOKEN.findall(expression))


def follow(state: tuple[Token, ...] | None, line: str) -> tuple[bool, tuple[Token, ...] | None]:
    """Check one line of a solution; return whether it is right, and the expression that is left after it.

    A line is right if its operation is legal in `state` (`_legal`) and its result is correct. After a wrong result the
    expression goes on with that result, so that later lines are checked against it. After a line without a legal
    operation the state is None, and no later line is right.
    """
    match = _LINE.fullmatch(line)
    if state is None or match is None:
        return False, None
    left, sign, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
    place = next((p for p in _legal(state) if _operation(state, p) == (left, sign, right)), None)
    if place is None:
        return False, None
    return apply(left, sign, right) == result, _replace(state, place, result)


def right_lines(state: tuple[Token, ...] | None) -> list[str]:
    """Return every line that would be right next, leftmost operation first; none if one number is left."""
    lines = []
    for place in _legal(state or ()):
        left, sign, right = _operation(state or (), place)
        lines.append(f"{left}{sign}{right}={apply(left, sign, right)}")
    return lines


def apply(left: int, sign: str, right: int) -> int:
    """Return the value of one operation."""
    if sign == "*":
        return left * right
    return left + right if sign == "+" else left - right


def _legal(state: tuple[Token, ...]) -> Iterator[int]:
    """Yield the index of every sign that can be reduced without changing the value, leftmost first."""
    for place in range(1, len(state) - 1):
        sign, left, right = state[place], state[place - 1], state[place + 1]
        if sign in ("+", "-", "*") and isinstance(left, int) and isinstance(right, int):
            before = state[place - 2] if place >= 2 else None
            after = state[place + 2] if place + 2 < len(state) else None
            if sign == "*" or (before not in ("*", "-") and after != "*"):
                yield place


def _operation(state: tuple[Token, ...], place: int) -> tuple[int, str, int]:
    left, sign, right = state[place - 1 : place + 2]
    assert isinstance(left, int) and isinstance(sign, str) and isinstance(right, int)
    return left, sign, right


def _replace(state: tuple[Token, ...], place: int, result: int) -> tuple[Token, ...]:
    """Return the state with the operation replaced by its result and brackets around that result removed."""
    before, after = state[: place - 1], state[place + 2 :]
    while before and after and before[-1] == "(" and after[0] == ")":
        before, after = before[:-1], after[1:]
    return (*before, result, *after)


def _grow(generator: random.Random, shape: Grade, operations: int) -> str | None:
    """Return a random expression with exactly so many operations, or None if the grade's terms ran out before.

    The expression is a chain from left to right in which one operand in four is a bracket. No number occurs twice, so
    that an operand identifies its position. A model of a million parameters cannot learn nested brackets or repeated
    numbers.
    """
    terms = generator.sample(shape.terms, len(shape.terms))
    chain = _number(terms.pop())
    while operations and terms:
        inside = generator.randint(1, min(shape.bracket_operations, operations - 1)) if operations > 1 else 0
        if generator.random() >= 0.25:
            inside = 0
        operand = _number(terms.pop())
        left = inside
        while left and terms:
            longer = _join(generator, shape, operand, _number(terms.pop()))
            operand, left = (longer, left - 1) if longer else (operand, left)
        if left:
            return None
        if inside:
            operand = _Term(f"({operand.text})", operand.value, 3)
        longer = _join(generator, shape, chain, operand)
        chain, operations = (longer, operations - inside - 1) if longer else (chain, operations)
    return None if operations else chain.text


def _number(value: int) -> _Term:
    return _Term(str(value), value, 3)


def _join(generator: random.Random, shape: Grade, left: _Term, right: _Term) -> _Term | None:
    """Join two terms by a random sign that keeps the value within the grade's range; None if no sign does."""
    signs = [sign for sign in "+-*" if apply(left.value, sign, right.value) in shape.values]
    if not signs:
        return None
    sign = generator.choice(signs)
    binding = 2 if sign == "*" else 1
    text = left.text if left.binding >= binding else f"({left.text})"
    return _Term(f"{text}{sign}{right.text}", apply(left.value, sign, right.value), binding)
