"""Writes right solutions: needed quantities in a random order, in random wordings, then the answer."""

import random
from collections.abc import Mapping, Sequence

from palmette.tasks.words.problem import SIGNS, Problem, Quantity, Sign, calculate, left_side
from palmette.tasks.words.telling import Step, tell_answer, tell_step


def solve(problem: Problem, generator: random.Random, plain: bool = False) -> tuple[str, ...]:
    """Return the lines of a solution; every order that is right may come, and every wording unless it is `plain`."""
    steps = [step_of(problem, quantity, problem.values) for quantity in random_order(problem, generator)]
    return (*(tell_step(generator, step, plain) for step in steps), tell_answer(problem.answer))


def random_order(problem: Problem, generator: random.Random) -> list[Quantity | None]:
    """Return the needed quantities that are not given, operands first; last comes None for a total or a gap."""
    waiting = [quantity for quantity in problem.needed if problem.by_target[quantity].kind != "given"]
    found: list[Quantity | None] = []
    while waiting:
        ready = [quantity for quantity in waiting if not any(o in waiting for o in operands_of(problem, quantity))]
        chosen = generator.choice(ready)
        found.append(chosen)
        waiting.remove(chosen)
    return found if problem.ask.kind == "one" else [*found, None]


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


def _rounded(sign: Sign, left: tuple[int, ...]) -> int:
    found = calculate(sign, left)
    if found is not None:
        return found
    return left[0] // left[1] if sign == "/" and left[1] else 0
