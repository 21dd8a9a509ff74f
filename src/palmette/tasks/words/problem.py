"""What a word problem is: quantities, a fact that defines each of them, what is asked, and the values that follow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

FactKind = Literal["given", "more", "fewer", "times", "half", "share", "sum", "difference", "rate"]
AskKind = Literal["one", "total", "gap"]
Sign = Literal["+", "-", "*", "/"]

SIGNS: dict[str, Sign] = {
    "more": "+", "fewer": "-", "times": "*", "half": "/", "share": "/", "sum": "+", "difference": "-", "rate": "*",
    "total": "+", "gap": "-",
}  # fmt: skip
"""The operation of each kind of step; `given` and `one` need none."""


class Quantity(NamedTuple):
    """How many of a thing somebody has: (`Mia`, `coins`), (`the farm`, `eggs`)."""

    holder: str
    thing: str


@dataclass(frozen=True)
class Fact:
    """The definition of one quantity: by a number, by others, or by another and a number.

    `given` has the number alone; `sum` and `difference` have two operands; the others one operand and a number: so
    many more, fewer or times as many, divided by the number, so many in each (`rate`).
    """

    kind: FactKind
    target: Quantity
    operands: tuple[Quantity, ...] = ()
    number: int | None = None


@dataclass(frozen=True)
class Ask:
    """What is asked: one quantity, the total of two or three, or by how much the first exceeds the second."""

    kind: AskKind
    quantities: tuple[Quantity, ...]


@dataclass(frozen=True)
class Problem:
    """Facts in the order of the text, what is asked, and the text itself.

    Raises ValueError unless each quantity is defined by exactly one fact, without a circle, as a whole number from 0.
    """

    facts: tuple[Fact, ...]
    ask: Ask
    text: str

    def __post_init__(self) -> None:
        if len(self.by_target) < len(self.facts):
            raise ValueError("a quantity is defined twice")
        _ = self.answer

    @cached_property
    def by_target(self) -> dict[Quantity, Fact]:
        """The fact that defines each quantity."""
        return {fact.target: fact for fact in self.facts}

    @cached_property
    def sentences(self) -> dict[Quantity, str]:
        """The sentence of the text, without its full stop, that defines each quantity."""
        told = (sentence.strip() for sentence in self.text.split("."))
        return {fact.target: sentence for fact, sentence in zip(self.facts, told, strict=False)}

    @cached_property
    def values(self) -> dict[Quantity, int]:
        """The value of every quantity, operands before what is made of them."""
        found: dict[Quantity, int] = {}
        waiting = list(self.facts)
        while waiting:
            later = []
            for fact in waiting:
                if all(operand in found for operand in fact.operands):
                    found[fact.target] = value_of(fact, found)
                else:
                    later.append(fact)
            if len(later) == len(waiting):
                raise ValueError("a quantity is not defined, or by itself")
            waiting = later
        return found

    @cached_property
    def answer(self) -> int:
        """The value of what is asked."""
        if any(quantity not in self.values for quantity in self.ask.quantities):
            raise ValueError("what is asked is not defined")
        numbers = [self.values[quantity] for quantity in self.ask.quantities]
        value = numbers[0] if self.ask.kind == "one" else calculate(SIGNS[self.ask.kind], numbers)
        if value is None:
            raise ValueError("the answer is no whole number from 0")
        return value

    @cached_property
    def needed(self) -> tuple[Quantity, ...]:
        """The quantities without which there is no answer, operands first."""
        found: set[Quantity] = set()
        waiting = list(self.ask.quantities)
        while waiting:
            quantity = waiting.pop()
            if quantity not in found:
                found.add(quantity)
                waiting += self.by_target[quantity].operands
        return tuple(quantity for quantity in self.values if quantity in found)

    @cached_property
    def steps(self) -> int:
        """How many calculations a solution has: of each needed quantity that is not given, and of a total or gap."""
        derived = sum(self.by_target[quantity].kind != "given" for quantity in self.needed)
        return derived + (self.ask.kind != "one")


def left_side(fact: Fact, values: Mapping[Quantity, int]) -> tuple[int, ...]:
    """Return the numbers that a fact calculates with. All of its operands have values."""
    numbers = tuple(values[operand] for operand in fact.operands)
    return numbers if fact.number is None else (*numbers, fact.number)


def value_of(fact: Fact, values: Mapping[Quantity, int]) -> int:
    """Return the value of a fact's target. Raises ValueError if it is no whole number from 0."""
    numbers = left_side(fact, values)
    value = numbers[0] if fact.kind == "given" else calculate(SIGNS[fact.kind], numbers)
    if value is None:
        raise ValueError(f"{fact.target.thing} of {fact.target.holder} are no whole number from 0")
    return value


def calculate(sign: Sign, numbers: Iterable[int]) -> int | None:
    """Return the result of an operation on two or more numbers; None if it is below 0 or no whole number."""
    first, *others = numbers
    for other in others:
        if sign == "+":
            first += other
        elif sign == "-":
            first -= other
        elif sign == "*":
            first *= other
        elif other == 0 or first % other:
            return None
        else:
            first //= other
    return first if first >= 0 else None
