"""Writes right solutions: needed quantities in a random order, in random wordings, then the answer."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from palmette.tasks.words.problem import SIGNS, Problem, Quantity, Sign, calculate, left_side
from palmette.tasks.words.telling import Step, tell_answer, tell_goal, tell_step

Style = Literal["told", "quoting", "goals", "quoted-goals"]
"""How solutions are written: a calculation on each line; after the fact that it uses; from the question backwards,
with a line for each quantity that has to be found first; the same with every line after the fact that it uses."""

QUOTING: tuple[Style, ...] = ("quoting", "quoted-goals")
LEADING_BACK: tuple[Style, ...] = ("goals", "quoted-goals")

GOES_ON = 0.9
"""How often the next line of a quoting solution uses the result of the line before, if one can."""


@dataclass(frozen=True)
class Goal:
    """A line that calculates nothing: to find the target, the operand is needed."""

    target: Quantity
    operand: Quantity


Item = Quantity | Goal | None
"""What a line is about: a quantity that is calculated, one that is needed first, or for None what is asked."""


def solve(problem: Problem, generator: random.Random, plain: bool = False, style: Style = "told") -> tuple[str, ...]:
    """Return the lines of a solution; every order that is right may come, and every wording unless it is `plain`.

    With `quoting` each line begins with the fact that it uses, and most go on from the line before where they can. With
    `goals` the way leads back from what is asked: a line says what is needed before it is found. `quoted-goals` does
    both.
    """
    items = items_of(problem, generator, style)
    return (*(tell_item(problem, item, generator, plain, style) for item in items), tell_answer(problem.answer))


def items_of(problem: Problem, generator: random.Random, style: Style) -> list[Item]:
    """Return what the lines of a solution are about, operands first; last comes None for a total or a gap."""
    if style in LEADING_BACK:
        return _from_goals(problem, generator)
    return list(random_order(problem, generator, GOES_ON if style == "quoting" else 0.0))


def random_order(problem: Problem, generator: random.Random, goes_on: float = 0.0) -> list[Quantity | None]:
    """Return the needed quantities that are not given, operands first; last comes None for a total or a gap.

    With the probability `goes_on` the next one is made of the last one, if there is such a one.
    """
    waiting = [quantity for quantity in problem.needed if problem.by_target[quantity].kind != "given"]
    found: list[Quantity | None] = []
    while waiting:
        ready = [quantity for quantity in waiting if not any(o in waiting for o in operands_of(problem, quantity))]
        next_ones = [quantity for quantity in ready if found and found[-1] in operands_of(problem, quantity)]
        chosen = generator.choice(next_ones if goes_on and next_ones and generator.random() < goes_on else ready)
        found.append(chosen)
        waiting.remove(chosen)
    return found if problem.ask.kind == "one" else [*found, None]


def tell_item(
    problem: Problem, item: Item, generator: random.Random, plain: bool = False, style: Style = "told"
) -> str:
    """Return the line of a solution that is about this."""
    if isinstance(item, Goal):
        return tell_goal(generator, item.target, item.operand, plain, _quoted(problem, item.target, style))
    return tell_calculation(problem, step_of(problem, item, problem.values), generator, plain, style)


def tell_calculation(
    problem: Problem, step: Step, generator: random.Random, plain: bool = False, style: Style = "told"
) -> str:
    """Return a line that calculates; in styles that quote it begins with the fact that defines what it calculates."""
    return tell_step(generator, step, plain, _quoted(problem, step.target, style))


def _quoted(problem: Problem, target: Quantity | None, style: Style) -> str | None:
    """Return the fact that a line about this quantity begins with, None for none."""
    return problem.sentences[target] if style in QUOTING and target is not None else None


def operands_of(problem: Problem, quantity: Quantity | None) -> Sequence[Quantity]:
    """Return what a quantity is calculated from; for None, what is asked."""
    return problem.ask.quantities if quantity is None else problem.by_target[quantity].operands


def step_of(problem: Problem, quantity: Quantity | None, values: Mapping[Quantity, int]) -> Step:
    """Return the calculation of a quantity, or for None of what is asked, from these values of its operands.

    A result below 0 is told as 0, a fraction rounded down: from wrong values anything may come.
    """
    if quantity is None:
        ask = problem.ask
        left = tuple(values[asked] for asked in ask.quantities)
        return Step(ask.kind, None, ask.quantities, left, _rounded(SIGNS[ask.kind], left))
    fact = problem.by_target[quantity]
    left = left_side(fact, values)
    return Step(fact.kind, quantity, fact.operands, left, _rounded(SIGNS[fact.kind], left))


def _from_goals(problem: Problem, generator: random.Random) -> list[Item]:
    """Return goals and calculations from what is asked down to what is given, depth first, operands in random order."""
    known = {fact.target for fact in problem.facts if fact.kind == "given"}
    found: list[Item] = []
    open_ones = list(reversed(problem.ask.quantities))
    while open_ones:
        quantity = open_ones[-1]
        unknown = [operand for operand in operands_of(problem, quantity) if operand not in known]
        if quantity in known or not unknown:
            found += [] if quantity in known else [quantity]
            known.add(quantity)
            open_ones.pop()
        else:
            open_ones.append(generator.choice(unknown))
            found.append(Goal(quantity, open_ones[-1]))
    return found if problem.ask.kind == "one" else [*found, None]


def _rounded(sign: Sign, left: tuple[int, ...]) -> int:
    found = calculate(sign, left)
    if found is not None:
        return found
    return left[0] // left[1] if sign == "/" and left[1] else 0
