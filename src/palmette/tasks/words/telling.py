"""Tells facts, questions and steps in a wording chosen at random among those that fit."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from palmette.tasks.words import wordings
from palmette.tasks.words.forms import fill, slots_of
from palmette.tasks.words.lexicon import CONTAINERS, PEOPLE
from palmette.tasks.words.problem import SIGNS, Ask, Fact, Quantity

_SLOTS = (("X", "x"), ("Y", "y"), ("Z", "z"))


@dataclass(frozen=True)
class Step:
    """One calculation of a solution: the numbers on its left side, their result, and the quantities it speaks of.

    `kind` is that of the fact, or `total` or `gap` for what is asked, which has no target.
    """

    kind: str
    target: Quantity | None
    operands: tuple[Quantity, ...]
    left: tuple[int, ...]
    result: int


def tell_fact(generator: random.Random, fact: Fact, plain: bool = False) -> str:
    """Return a sentence that tells a fact; `plain` ones are always told in the first wording that fits."""
    slots = _slots((fact.target, *fact.operands))
    slots["n"] = fact.number
    if fact.kind == "rate":
        slots["u"] = CONTAINERS[fact.operands[0].thing]
    forms = [form for form, names in _forms(wordings.FACTS[fact.kind]) if _fact_fits(names, slots)]
    return fill(_chosen(generator, forms, plain), slots)


def tell_ask(generator: random.Random, ask: Ask, plain: bool = False) -> str:
    """Return a question."""
    forms = wordings.ASKS[ask.kind, len(ask.quantities)]
    return fill(_chosen(generator, forms, plain), _slots(ask.quantities))


def tell_step(generator: random.Random, step: Step, plain: bool = False, quoted: str | None = None) -> str:
    """Return a line of a solution; with a fact to be `quoted` the line begins with it: FACT: CALCULATION."""
    forms = (wordings.TOLD if quoted is None else wordings.QUOTED)[step.kind]
    return _after(quoted, _chosen(generator, _lines(step, forms), plain))


def tell_goal(
    generator: random.Random, target: Quantity, operand: Quantity, plain: bool = False, quoted: str | None = None
) -> str:
    """Return the line which says that an operand has to be found before the target, after a fact to be `quoted`."""
    return _after(quoted, fill(_chosen(generator, wordings.GOALS, plain), _slots((target, operand))))


def _after(quoted: str | None, line: str) -> str:
    if quoted is None:
        return line
    is_name = line.split()[0] in PEOPLE
    return f"{quoted}: {line if is_name else line[0].lower() + line[1:]}"


def all_lines(step: Step) -> list[str]:
    """Return a step in every wording that fits."""
    return _lines(step, wordings.STEPS[step.kind])


def _lines(step: Step, forms: tuple[str, ...]) -> list[str]:
    """Return a step in those of the wordings that fit."""
    left = SIGNS[step.kind].join(map(str, step.left))
    slots: dict[str, Any] = {"l": left, "e": f"{left}={step.result}", "c": step.result}
    slots["a"], slots["b"] = step.left[:2]
    if step.target is not None:
        slots.update(_slots((step.target, *step.operands)))
    return [fill(form, slots) for form, names in _forms(forms) if _step_fits(names, slots)]


def tell_answer(answer: int) -> str:
    """Return the last line of a solution."""
    return fill(wordings.ANSWER, {"c": answer})


def _chosen(generator: random.Random, forms: Sequence[str], plain: bool) -> str:
    return forms[0] if plain else generator.choice(forms)


def _slots(quantities: Sequence[Quantity]) -> dict[str, Any]:
    slots: dict[str, Any] = {}
    for (holder, thing), quantity in zip(_SLOTS, quantities, strict=False):
        slots[holder], slots[thing] = quantity
    return slots


@cache
def _forms(forms: tuple[str, ...]) -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((form, frozenset(slots_of(form))) for form in forms)


def _fact_fits(names: frozenset[str], slots: Mapping[str, Any]) -> bool:
    """Tell whether what a form leaves out is the same as of the target."""
    for holder, thing in _SLOTS[1:]:
        if holder in slots:
            same_thing = thing in names or slots[thing] == slots["x"] or "u" in names
            if not same_thing or (holder not in names and slots[holder] != slots["X"]):
                return False
    return True


def _step_fits(names: frozenset[str], slots: Mapping[str, Any]) -> bool:
    """Tell whether the operands that a form names by half, only by holder or thing, are told apart by it."""
    if "Y" in names and "y" not in names and slots["Y"] == slots["X"]:
        return False
    if "Z" in names and "z" not in names and slots["Z"] in (slots["X"], slots["Y"]):
        return False
    return not ("z" in names and "Z" not in names and slots["z"] == slots["y"])
