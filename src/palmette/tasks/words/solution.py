"""Writes right solutions: needed quantities in a random order, in random wordings, then the answer."""

import random
from collections.abc import Mapping, Sequence

from palmette.tasks.words.problem import SIGNS, Problem, Quantity, Sign, calculate, left_side
from palmette.tasks.words.telling import Step, tell_answer, tell_step

GOES_ON = 0.9
"""How often the next line of a quoting solution uses the result of the line before, if one can."""


def solve(problem: Problem, generator: random.Random, plain: bool = False, quoting: bool = False) -> tuple[str, ...]:
    """Return the lines of a solution; every order that is right may come, and every wording unless it is `plain`.

    With `quoting` each line begins with the fact that it uses, and most go on from the line before where they can.
    """
    order = random_order(problem, generator, GOES_ON if quoting else 0.0)
    steps = [step_of(problem, quantity, problem.values) for quantity in order]
    lines = [tell_step(generator, step, plain, quote(problem, step, quoting)) for step in steps]
    return (*lines, tell_answer(problem.answer))


def quote(problem: Problem, step: Step, quoting: bool) -> str | None:
    """Return the sentence that a step begins with, if it has to: that of the fact which defines what it calculates."""
    return problem.sentences[step.target] if quoting and step.target is not None else None


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
