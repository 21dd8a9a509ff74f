"""Integer expressions climbed one operation per line, in graded difficulty.

A problem is an expression; a solution reduces one operation on each line and its last result is the answer:

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
    """How hard a problem is: how many lines it takes and how large its numbers grow."""

    fewest_operations: int
    most_operations: int
    largest_term: int
    largest_value: int


GRADES: dict[int, Grade] = {
    1: Grade(1, 3, largest_term=9, largest_value=50),
    2: Grade(4, 7, largest_term=20, largest_value=99),
    3: Grade(8, 14, largest_term=20, largest_value=99),
    4: Grade(15, 20, largest_term=30, largest_value=199),
}
DEFAULT_GRADE = 3


@dataclass(frozen=True)
class Problem:
    """An expression, the canonical lines that reduce it (leftmost operation first) and its value."""

    expression: str
    lines: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class _Term:
    text: str
    value: int
    binding: int  # 3 number, 2 product, 1 sum or difference


def problems(grade: int, split: Split, seed: int) -> Iterator[Problem]:
    """Yield problems without end: the same for the same arguments, no expression in both splits."""
    shape = GRADES[grade]
    generator = random.Random(f"ladder {grade} {split} {seed}")
    while True:
        operations = generator.randint(shape.fewest_operations, shape.most_operations)
        expression = _grow(generator, shape, operations).text
        if split_of(expression) == split:
            yield solve(expression)


def split_of(expression: str) -> Split:
    """Tell which split owns an expression: one in ten belongs to the test split."""
    digest = hashlib.sha256(expression.encode()).digest()
    return "test" if digest[0] % 10 == 0 else "train"


def solve(expression: str) -> Problem:
    """Reduce the leftmost legal operation until one number is left."""
    state = parse(expression)
    lines = []
    while len(state) > 1:
        place = next(_legal(state))
        left, sign, right = _operation(state, place)
        result = apply(left, sign, right)
        lines.append(f"{left}{sign}{right}={result}")
        state = _replace(state, place, result)
    value = state[0]
    assert isinstance(value, int)
    return Problem(expression, tuple(lines), value)


def parse(expression: str) -> tuple[Token, ...]:
    """Split an expression into integers, signs and brackets."""
    return tuple(int(token) if token.isdigit() else token for token in _TOKEN.findall(expression))


def follow(state: tuple[Token, ...] | None, line: str) -> tuple[bool, tuple[Token, ...] | None]:
    """Judge one line: is it right, and what is left of the expression after it.

    A line is right when it names an operation that may be reduced now and gives its true result. A wrong result is
    carried on, so that later lines are judged by what they follow from; a line that names no legal operation leaves
    no state, and nothing after it can be right.
    """
    match = _LINE.fullmatch(line)
    if state is None or match is None:
        return False, None
    left, sign, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
    place = next((p for p in _legal(state) if _operation(state, p) == (left, sign, right)), None)
    if place is None:
        return False, None
    return apply(left, sign, right) == result, _replace(state, place, result)


def apply(left: int, sign: str, right: int) -> int:
    """Return the value of one operation."""
    if sign == "*":
        return left * right
    return left + right if sign == "+" else left - right


def _legal(state: tuple[Token, ...]) -> Iterator[int]:
    """Yield the places of signs whose reduction keeps the expression's value, leftmost first."""
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
    """Put the result where the operation stood, without the brackets that hold nothing else."""
    before, after = state[: place - 1], state[place + 2 :]
    while before and after and before[-1] == "(" and after[0] == ")":
        before, after = before[:-1], after[1:]
    return (*before, result, *after)


def _grow(generator: random.Random, shape: Grade, operations: int) -> _Term:
    """Grow an expression of exactly that many operations, its values within the grade's bound.

    Two thirds of the operations take a plain number on their right, so that the ladder is mostly a chain: bushy
    expressions of this length are beyond a model of two million parameters.
    """
    if operations == 0:
        value = generator.randint(1, shape.largest_term)
        return _Term(str(value), value, 3)
    room = operations - 1
    beside = generator.randint(1, min(3, room)) if room and generator.random() < 0.33 else 0
    left = _grow(generator, shape, room - beside)
    for _ in range(20):
        right = _grow(generator, shape, beside)
        sign = generator.choice("+-*")
        value = apply(left.value, sign, right.value)
        if 0 <= value <= shape.largest_value:
            return _join(left, sign, right, value)
    return _grow(generator, shape, operations)


def _join(left: _Term, sign: str, right: _Term, value: int) -> _Term:
    binding = 2 if sign == "*" else 1
    left_text = left.text if left.binding >= binding else f"({left.text})"
    right_text = right.text if right.binding > binding else f"({right.text})"
    return _Term(f"{left_text}{sign}{right_text}", value, binding)
