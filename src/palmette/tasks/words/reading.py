"""Reads the sentences of questions and solutions: the text of a problem, and one line of a solution."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from palmette.tasks.words import wordings
from palmette.tasks.words.forms import Forms
from palmette.tasks.words.problem import Ask, AskKind, Fact, FactKind, Problem, Quantity
from palmette.tasks.words.tokens import Equation

LONGEST_TEXT = 50_000
MOST_FACTS = 200

_FACTS = Forms[FactKind]((form, kind) for kind, forms in wordings.FACTS.items() for form in forms)
_ASKS = Forms[AskKind]((form, kind) for (kind, _), forms in wordings.ASKS.items() for form in forms)

LineKind = Literal["value", "goal", "total", "gap", "answer"]
_USES = Counter(form for forms in wordings.STEPS.values() for form in forms)


@dataclass(frozen=True)
class Named:
    """An operand as a line names it: by its holder, its thing, its value, or some of them."""

    holder: str | None
    thing: str | None
    value: int | None


@dataclass(frozen=True)
class Line:
    """What a line of a solution says.

    `value`: the target has this result, by an equation, or by none if it only states it. `goal`: the target is made of
    the one that is named; only such a line has no result. `total` and `gap`: what is asked. `answer`: the last line.
    `claims` is the kind of relation that only this wording speaks of. `quoted` is the fact that the line begins with.
    """

    kind: LineKind
    result: int | None
    equation: Equation | None = None
    target: Quantity | None = None
    named: tuple[Named, ...] = ()
    claims: str | None = None
    quoted: Fact | None = None


@dataclass(frozen=True)
class _Told:
    kind: LineKind
    claims: str | None = None


def _line_forms() -> list[tuple[str, _Told]]:
    found = [(form, _Told("value")) for form in wordings.FACTS["given"]]
    for kind, forms in wordings.STEPS.items():
        for form in forms:
            if kind == "total" or kind == "gap":
                found.append((form, _Told(cast("LineKind", kind))))
            else:
                found.append((form, _Told("value", kind if _USES[form] == 1 else None)))
    found += [(form, _Told("goal")) for form in wordings.GOALS]
    answers = (wordings.ANSWER, "Answer is {c}", "Answer = {c}", "The answer is {c}", "So the answer is {c}")
    found += [(form, _Told("answer")) for form in answers]
    return found


_LINES = Forms[_Told](_line_forms())


def read_line(line: str) -> Line | None:
    """Return what a line says: a calculation or a goal, alone or after `FACT:`. None if it is no such sentence."""
    found = _LINES.read(line)
    if found is None:
        return _read_quoting(line)
    told, slots = found
    equation: Equation | None = slots.get("e") or slots.get("l")
    result = slots.get("c", slots.get("n", equation.result if equation else None))
    assert isinstance(result, int) or told.kind == "goal", "every other form has a result"
    target = Quantity(slots["X"], slots["x"]) if told.kind in ("value", "goal") else None
    return Line(told.kind, result, equation, target, _named(slots), told.claims)


def _read_quoting(line: str) -> Line | None:
    quoted, mark, rest = line.partition(":")
    fact = _FACTS.read(quoted) if mark else None
    said = read_line(rest) if fact is not None and ":" not in rest else None
    return None if said is None or said.kind == "answer" else replace(said, quoted=_fact(quoted))


def _named(slots: dict[str, Any]) -> tuple[Named, ...]:
    first = Named(slots.get("Y"), slots.get("y"), slots.get("a"))
    second = Named(slots.get("Z"), slots.get("z"), slots.get("b"))
    return (first, second)


def read_problem(text: str) -> Problem:
    """Return the problem that a text tells: facts with full stops, then a question; what follows is not read.

    Raises ValueError for a text of anything else, or with facts that do not define what is asked.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"the text has over {LONGEST_TEXT:,} characters")
    asked_in, mark, _ = text.partition("?")
    *told, question = asked_in.split(".")
    ask = _ASKS.read(question)
    if not mark or ask is None:
        raise ValueError("the text asks no question of the task words")
    if len(told) > MOST_FACTS:
        raise ValueError(f"the text has over {MOST_FACTS} facts")
    kind, slots = ask
    pairs = (("X", "x"), ("Y", "y"), ("Z", "z"))
    quantities = tuple(Quantity(slots[holder], slots[thing]) for holder, thing in pairs if holder in slots)
    return Problem(tuple(map(_fact, told)), Ask(kind, quantities), asked_in.strip() + mark)


def _fact(sentence: str) -> Fact:
    found = _FACTS.read(sentence)
    if found is None:
        raise ValueError(f"{sentence.strip()[:80]!r} is no fact of the task words")
    kind, slots = found
    target = Quantity(slots["X"], slots["x"])
    if kind == "given":
        return Fact(kind, target, (), slots["n"])
    first = Quantity(slots.get("Y", target.holder), slots.get("y", target.thing))
    if kind in ("sum", "difference"):
        return Fact(kind, target, (first, Quantity(slots["Z"], slots.get("z", target.thing))))
    return Fact(kind, target, (first,), 2 if kind == "half" else slots["n"])
