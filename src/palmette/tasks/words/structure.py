"""The structure of a problem as a hash without names and numbers, and the split that it belongs to."""

import hashlib
from collections.abc import Sequence
from typing import Literal

from palmette.tasks.words.problem import Problem

Split = Literal["train", "test"]
Node = tuple[str, tuple[int, ...]]
"""The kind of a fact, and the places of its operands, which come before it."""

_ORDERED = ("difference", "gap")
"""Kinds for which it matters which operand comes first."""

_SPLIT = "words 83"
"""What is hashed with a structure to choose its split. Of the 11 structures of one step three are in `test`: a
sum, a rate and a gap."""


def structure_of(problem: Problem) -> str:
    """Return the hash of a problem's structure: of its needed quantities, see `hash_graph`."""
    places = {quantity: place for place, quantity in enumerate(problem.needed)}
    nodes = [
        (fact.kind, tuple(places[operand] for operand in fact.operands))
        for fact in map(problem.by_target.__getitem__, problem.needed)
    ]
    return hash_graph(nodes, problem.ask.kind, [places[quantity] for quantity in problem.ask.quantities])


def hash_graph(nodes: Sequence[Node], ask: str, asked: Sequence[int]) -> str:
    """Return a hash of who depends on whom, by which kind of relation, and what is asked.

    It is the same for any names, numbers and order. A node's color is a hash of all that it is made from, then of all
    that is made from it, so that two graphs which differ only in the order of their nodes have the same colors.
    """
    below: list[str] = []
    for kind, operands in nodes:
        colors = [below[operand] for operand in operands]
        below.append(_hash(kind, *(colors if kind in _ORDERED else sorted(colors))))
    above: list[list[str]] = [[] for _ in nodes]
    for place, node in enumerate(asked):
        above[node].append(_hash(ask, _place(ask, place)))
    found = []
    for node in reversed(range(len(nodes))):
        color = _hash(below[node], *sorted(above[node]))
        found.append(color)
        kind, operands = nodes[node]
        for place, operand in enumerate(operands):
            above[operand].append(_hash(color, _place(kind, place)))
    return _hash(ask, *sorted(found))


def split_of(structure: str) -> Split:
    """Return the split of a structure: one in ten belongs to `test`."""
    return "test" if int(_hash(_SPLIT, structure), 16) % 10 == 0 else "train"


def _place(kind: str, place: int) -> str:
    return str(place) if kind in _ORDERED else ""


def _hash(*parts: str) -> str:
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=8).hexdigest()
