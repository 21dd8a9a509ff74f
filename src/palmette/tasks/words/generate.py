"""Generates word problems in four grades of difficulty, train and test disjoint by structure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from palmette.tasks.words.lexicon import CONTAINERS, HOLDERS, THINGS
from palmette.tasks.words.problem import SIGNS, Ask, AskKind, Fact, FactKind, Problem, Quantity, calculate
from palmette.tasks.words.structure import Split, hash_graph, split_of
from palmette.tasks.words.telling import tell_ask, tell_fact


@dataclass(frozen=True)
class Grade:
    """The limits of one difficulty: calculations in a solution, facts that are not needed."""

    steps: range
    extra: range


GRADES: dict[int, Grade] = {
    1: Grade(range(1, 3), extra=range(2)),
    2: Grade(range(3, 6), extra=range(1, 3)),
    3: Grade(range(6, 10), extra=range(1, 4)),
    4: Grade(range(10, 17), extra=range(2, 5)),
}
DEFAULT_GRADE = 4

_ASKS: tuple[tuple[AskKind, int], ...] = (("one", 1), ("one", 1), ("one", 1), ("total", 2), ("total", 3), ("gap", 2))
_NUMBERS: dict[FactKind, range] = {
    "given": range(2, 21), "more": range(2, 13), "fewer": range(2, 13), "times": range(2, 5), "half": range(2, 3),
    "share": range(3, 6), "rate": range(2, 7),
}  # fmt: skip
VALUES = range(1, 51)
"""Of all quantities: what is hard is which to take, not to calculate with them."""
_KINDS: tuple[FactKind, ...] = ("more", "fewer", "times", "half", "share", "sum", "difference", "rate")
_TRIES = 200
"""After so many steps that do not fit a problem is given up."""


@dataclass(frozen=True)
class _Drawn:
    """A quantity before it has a name: `operands` are places of earlier ones."""

    kind: FactKind
    operands: tuple[int, ...]
    number: int | None
    value: int


def problems(grade: int, split: Split, seed: int, plain: bool = False) -> Iterator[Problem]:
    """Yield problems without end, the same ones for the same arguments. No structure is in both splits.

    `plain` ones have one wording for each kind of fact and question. No answer is one of the numbers in the text.
    """
    shape = GRADES[grade]
    generator = random.Random(f"words {grade} {split} {seed}")
    while True:
        needed = _draw(generator, shape)
        if needed is None:
            continue
        drawn, kind, asked = needed
        if split_of(hash_graph([(node.kind, node.operands) for node in drawn], kind, asked)) != split:
            continue
        with_extra = _with_extra(generator, shape, drawn)
        numbers = [drawn[node].value for node in asked]
        answer = numbers[0] if kind == "one" else calculate(SIGNS[kind], numbers)
        if answer in {node.number for node in with_extra}:
            continue
        problem = _told(generator, with_extra, kind, asked, plain)
        if problem is not None:
            yield problem


def _draw(generator: random.Random, shape: Grade) -> tuple[list[_Drawn], AskKind, list[int]] | None:
    """Return the quantities that are needed, what is asked, and of which of them; None if it came out too large.

    Steps are added one by one. An open quantity is one that no other is made of yet. A step may close one or two and
    opens one, so that as many are open at the end as are asked for.
    """
    steps = generator.choice(shape.steps)
    kind, wanted = generator.choice(_ASKS)
    left = steps - (kind != "one")
    asked_given = max(wanted - left, int(kind != "one" and generator.random() < 0.25))
    drawn = [_given(generator) for _ in range(asked_given)]
    used: list[int] = []
    unused = list(range(asked_given))
    for _ in range(_TRIES):
        if not left:
            break
        new = _step(generator, drawn, used, unused)
        if new is None:
            continue
        closed = [place for place in new[-1].operands if place in unused]
        if abs(len(unused) - len(closed) + 1 - wanted) > left - 1:
            continue
        left -= 1
        drawn += new
        unused = [place for place in unused if place not in closed] + [len(drawn) - 1]
        used += [*closed, *range(len(drawn) - len(new), len(drawn) - 1)]
    generator.shuffle(unused)
    if kind == "gap":
        unused.sort(key=lambda place: -drawn[place].value)
    answers = [drawn[place].value for place in unused]
    if left or (kind != "one" and calculate(SIGNS[kind], answers) not in VALUES):
        return None
    return drawn, kind, unused


def _given(generator: random.Random) -> _Drawn:
    number = generator.choice(_NUMBERS["given"])
    return _Drawn("given", (), number, number)


def _step(generator: random.Random, drawn: list[_Drawn], used: list[int], unused: list[int]) -> list[_Drawn] | None:
    """Return a random quantity made of earlier ones or new given ones, which come before it; None if it does not fit.

    `used` and `unused` are the places of the earlier ones that it may be made of.
    """
    kind = generator.choice(_KINDS)
    new: list[_Drawn] = []
    operands: list[int] = []
    for _ in range(2 if kind in ("sum", "difference") else 1):
        draw = generator.random()
        ready = unused if draw < 0.7 else used if draw < 0.85 else []
        if ready:
            operands.append(generator.choice(ready))
        else:
            operands.append(len(drawn) + len(new))
            new.append(_given(generator))
    if len(set(operands)) < len(operands):
        return None
    nodes = [*drawn, *new] if new else drawn
    if kind == "difference":
        operands.sort(key=lambda place: -nodes[place].value)
    if kind == "rate" and nodes[operands[0]].kind == "rate":
        return None  # A thing in a container is no container.
    number = generator.choice(_NUMBERS[kind]) if kind in _NUMBERS else None
    numbers = [nodes[place].value for place in operands] + ([] if number is None else [number])
    value = calculate(SIGNS[kind], numbers)
    if value not in VALUES or value is None:
        return None
    return [*new, _Drawn(kind, tuple(operands), number, value)]


def _with_extra(generator: random.Random, shape: Grade, drawn: list[_Drawn]) -> list[_Drawn]:
    """Return the quantities and some that are not needed: given ones, or made of any before them."""
    found = list(drawn)
    most = len(drawn) + generator.choice(shape.extra)
    for _ in range(_TRIES):
        if len(found) >= most:
            break
        if generator.random() < 0.4:
            found.append(_given(generator))
        else:
            new = _step(generator, found, [], list(range(len(found))))
            found += new if new is not None and len(found) + len(new) <= most else []
    return found


def _told(
    generator: random.Random, drawn: list[_Drawn], kind: AskKind, asked: list[int], plain: bool
) -> Problem | None:
    """Return the problem with names, its facts in random order; None if names run out."""
    names = _names(generator, drawn)
    if names is None:
        return None
    facts = [
        Fact(node.kind, name, tuple(names[place] for place in node.operands), node.number)
        for node, name in zip(drawn, names, strict=True)
    ]
    generator.shuffle(facts)
    ask = Ask(kind, tuple(names[place] for place in asked))
    sentences = [*(tell_fact(generator, fact, plain) for fact in facts), tell_ask(generator, ask, plain)]
    return Problem(tuple(facts), ask, " ".join(sentences))


def _names(generator: random.Random, drawn: list[_Drawn]) -> list[Quantity] | None:
    """Return a name for each quantity, None if they run out.

    Nobody has two, but for containers and what is in them; few things, so that most come again.
    """
    holders = iter(generator.sample(HOLDERS, len(HOLDERS)))
    things = generator.sample(THINGS, min(len(THINGS), 3 + len(drawn) // 4))
    containers = generator.sample(list(CONTAINERS), 3)
    holding = {node.operands[0] for node in drawn if node.kind == "rate"}
    names: list[Quantity] = []
    for place, node in enumerate(drawn):
        holder = names[node.operands[0]].holder if node.kind == "rate" else next(holders, None)
        had = {name.thing for name in names if name.holder == holder}
        free = [thing for thing in (containers if place in holding else things) if thing not in had]
        if holder is None or not free:
            return None
        names.append(Quantity(holder, generator.choice(free)))
    return names
