"""Writes wrong solutions with one plausible mistake each, for training reward models."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from palmette.tasks.words.problem import SIGNS, Problem, Quantity, calculate
from palmette.tasks.words.solution import GOES_ON, operands_of, quote, random_order, step_of
from palmette.tasks.words.telling import Step, tell_answer, tell_step

Mistake = Literal["slip", "operand", "unneeded", "relation", "skipped"]
"""Wrong arithmetic; a needed quantity for another; one that is not needed; add for subtract; a line left out."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)

_MISTAKEN_FOR = {
    "more": "fewer", "fewer": "more", "times": "share", "half": "times", "share": "times", "sum": "difference",
    "difference": "sum", "rate": "share", "total": "gap", "gap": "total",
}  # fmt: skip


@dataclass(frozen=True)
class WrongSolution:
    """A solution with one mistake: its lines, the place of the first wrong one, and the kind of mistake."""

    lines: tuple[str, ...]
    place: int
    mistake: Mistake


def wrong_solutions(problem: Problem, generator: random.Random, quoting: bool = False) -> Iterator[WrongSolution]:
    """Yield a wrong solution for each kind of mistake that can be made in this problem, the kinds in random order.

    The lines after a mistake go on from its result, as somebody writes who has not noticed.
    """
    for mistake in generator.sample(MISTAKES, len(MISTAKES)):
        order = random_order(problem, generator, GOES_ON if quoting else 0.0)
        if mistake == "skipped":
            if len(order) > 1:
                yield _skip(problem, order, generator, quoting)
            continue
        for place in generator.sample(range(len(order)), len(order)):
            known = [quantity for quantity in order[:place] if quantity is not None]
            known += [fact.target for fact in problem.facts if fact.kind == "given"]
            right = step_of(problem, order[place], problem.values)
            step = mistaken_step(mistake, problem, right, known, generator)
            if step is not None:
                yield WrongSolution(_go_on(problem, order, place, step, generator, quoting), place, mistake)
                break


def mistaken_step(
    mistake: Mistake, problem: Problem, step: Step, known: Sequence[Quantity], generator: random.Random
) -> Step | None:
    """Return a step with a mistake, None if it cannot be made there. `known` is what could be taken for an operand."""
    if mistake == "slip":
        return _slip(step, generator)
    if mistake == "relation":
        return _other_relation(step)
    is_needed = mistake == "operand"
    others = [name for name in known if (name in problem.needed) == is_needed]
    return _other_operand(problem, step, others, generator)


def _slip(step: Step, generator: random.Random) -> Step:
    """Miscalculate: off by 1, 2 or 10, or the digits reversed."""
    right = step.result
    slips = {right + change for change in (-10, -2, -1, 1, 2, 10)} | {int(str(right)[::-1])}
    return replace(step, result=generator.choice(sorted(slip for slip in slips - {right} if slip >= 0)))


def _other_operand(problem: Problem, step: Step, others: Sequence[Quantity], generator: random.Random) -> Step | None:
    """Take another quantity for one of the operands, if one has another value that can be calculated with."""
    place = generator.randrange(len(step.operands))
    for other in generator.sample(others, len(others)):
        if other in step.operands or problem.values[other] == step.left[place]:
            continue
        left = (*step.left[:place], problem.values[other], *step.left[place + 1 :])
        result = calculate(SIGNS[step.kind], left)
        if result is not None:
            operands = (*step.operands[:place], other, *step.operands[place + 1 :])
            return replace(step, operands=operands, left=left, result=result)
    return None


def _other_relation(step: Step) -> Step | None:
    """Add instead of subtracting, multiply instead of dividing, and the other way round."""
    kind = _MISTAKEN_FOR[step.kind]
    result = calculate(SIGNS[kind], step.left)
    return None if result is None or len(step.left) > 2 else replace(step, kind=kind, result=result)


def _go_on(
    problem: Problem,
    order: Sequence[Quantity | None],
    place: int,
    mistaken: Step,
    generator: random.Random,
    quoting: bool,
) -> tuple[str, ...]:
    """Return the lines of a solution in which one step is replaced, and later ones are calculated from its result."""
    values = dict(problem.values)
    lines = []
    result = 0
    for at, quantity in enumerate(order):
        step = mistaken if at == place else step_of(problem, quantity, values)
        if quantity is not None:
            values[quantity] = step.result
        result = step.result
        lines.append(tell_step(generator, step, quoted=quote(problem, step, quoting)))
    return (*lines, tell_answer(result))


def _skip(problem: Problem, order: Sequence[Quantity | None], generator: random.Random, quoting: bool) -> WrongSolution:
    """Leave out a line and go on as if it had been there: the first line that uses its result is the wrong one."""
    skipped = generator.randrange(len(order) - 1)
    steps = [step_of(problem, quantity, problem.values) for quantity in order]
    lines = [tell_step(generator, step, quoted=quote(problem, step, quoting)) for step in steps]
    user = next(at for at, quantity in enumerate(order) if order[skipped] in operands_of(problem, quantity))
    del lines[skipped]
    return WrongSolution((*lines, tell_answer(problem.answer)), user - 1, "skipped")
