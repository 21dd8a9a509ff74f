"""Writes wrong solutions with one plausible mistake each, for training reward models."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from palmette.tasks.words.problem import SIGNS, Problem, Quantity, calculate
from palmette.tasks.words.solution import (
    Goal,
    Item,
    Style,
    items_of,
    operands_of,
    step_of,
    tell_calculation,
    tell_item,
)
from palmette.tasks.words.telling import Step, tell_answer

Mistake = Literal["slip", "operand", "unneeded", "relation", "skipped", "goal"]
"""Wrong arithmetic; a needed quantity for another; one that is not needed; add for subtract; a line left out; a goal
that what is looked for is not made of."""

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


def wrong_solutions(problem: Problem, generator: random.Random, style: Style = "told") -> Iterator[WrongSolution]:
    """Yield a wrong solution for each kind of mistake that can be made in this problem, the kinds in random order.

    The lines after a mistake go on from its result, as somebody writes who has not noticed.
    """
    for mistake in generator.sample(MISTAKES, len(MISTAKES)):
        order = items_of(problem, generator, style)
        if mistake == "goal":
            yield from _other_goal(problem, order, generator, style)
            continue
        calculated = [place for place, item in enumerate(order) if not isinstance(item, Goal)]
        if mistake == "skipped":
            if len(calculated) > 1:
                yield _skip(problem, order, generator, style)
            continue
        for place in generator.sample(calculated, len(calculated)):
            item = order[place]
            assert not isinstance(item, Goal)
            known = [other for other in order[:place] if isinstance(other, Quantity)]
            known += [fact.target for fact in problem.facts if fact.kind == "given"]
            step = mistaken_step(mistake, problem, step_of(problem, item, problem.values), known, generator)
            if step is not None:
                yield WrongSolution(_go_on(problem, order, place, step, generator, style), place, mistake)
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


def _other_goal(
    problem: Problem, order: Sequence[Item], generator: random.Random, style: Style
) -> Iterator[WrongSolution]:
    """Yield the solution with another quantity named in one of its goals, if it has goals.

    The lines after it go on as if the goal had named the right one, so that all of them are right.
    """
    goals = [place for place, item in enumerate(order) if isinstance(item, Goal)]
    if not goals:
        return
    place = generator.choice(goals)
    goal = order[place]
    assert isinstance(goal, Goal)
    others = [
        fact.target for fact in problem.facts if fact.target not in (goal.target, *operands_of(problem, goal.target))
    ]
    if others:
        changed = [*order[:place], replace(goal, operand=generator.choice(others)), *order[place + 1 :]]
        lines = [tell_item(problem, item, generator, style=style) for item in changed]
        yield WrongSolution((*lines, tell_answer(problem.answer)), place, "goal")


def _go_on(
    problem: Problem,
    order: Sequence[Item],
    place: int,
    mistaken: Step,
    generator: random.Random,
    style: Style,
) -> tuple[str, ...]:
    """Return the lines of a solution in which one step is replaced, and later ones are calculated from its result."""
    values = dict(problem.values)
    lines = []
    result = 0
    for at, item in enumerate(order):
        if isinstance(item, Goal):
            lines.append(tell_item(problem, item, generator, style=style))
            continue
        step = mistaken if at == place else step_of(problem, item, values)
        if item is not None:
            values[item] = step.result
        result = step.result
        lines.append(tell_calculation(problem, step, generator, style=style))
    return (*lines, tell_answer(result))


def _skip(problem: Problem, order: Sequence[Item], generator: random.Random, style: Style) -> WrongSolution:
    """Leave out a line that calculates and go on as if it were there: the first one that uses its result is wrong."""
    calculated = [item for item in order if not isinstance(item, Goal)]
    skipped = order.index(generator.choice(calculated[:-1]))
    lines = [tell_item(problem, item, generator, style=style) for item in order]
    user = next(item for item in calculated if order[skipped] in operands_of(problem, item))
    place = order.index(user) - 1
    del lines[skipped]
    return WrongSolution((*lines, tell_answer(problem.answer)), place, "skipped")
