"""Sentence forms with slots: fills them, and finds the form of a sentence again."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from palmette.tasks.words.tokens import Token, tokens_of

Told = TypeVar("Told")
_SLOT = re.compile(r"\{(\w)\}")
_CLASSES = {"n": "N", "a": "N", "b": "N", "c": "N", "u": "U", "e": "E", "l": "L"}


def fill(form: str, slots: Mapping[str, Any]) -> str:
    """Return a sentence: the form with its slots filled, the first letter a capital."""
    sentence = form.format_map(slots)
    return sentence[0].upper() + sentence[1:]


def slots_of(form: str) -> tuple[str, ...]:
    """Return the names of a form's slots, in order."""
    return tuple(_SLOT.findall(form))


@dataclass
class _Node(Generic[Told]):
    following: dict[str, "_Node[Told]"] = field(default_factory=dict)
    slots: tuple[str, ...] | None = None
    told: Told | None = None


class Forms(Generic[Told]):
    """Forms by the tokens they consist of, each with what it tells. One walk finds the form of a sentence."""

    def __init__(self, forms: Iterable[tuple[str, Told]]) -> None:
        """Raise ValueError if two forms that tell different things consist of the same tokens."""
        self._root: _Node[Told] = _Node()
        for form, told in forms:
            node = self._root
            for token in _classes(form):
                node = node.following.setdefault(token, _Node())
            if node.slots is not None and (node.slots, node.told) != (slots_of(form), told):
                raise ValueError(f"two forms read the same: {form!r}")
            node.slots, node.told = slots_of(form), told

    def read(self, sentence: str) -> tuple[Told, dict[str, Any]] | None:
        """Return what the form of a sentence tells, and its slots by name; None for a sentence of no form."""
        node = self._root
        values: list[Any] = []
        for token, value in tokens_of(sentence) or [("", "")]:
            found = node.following.get(token)
            if found is None:
                return None
            if token.isupper():
                values.append(value)
            node = found
        if node.slots is None or node.told is None:
            return None
        slots: dict[str, Any] = {}
        for name, value in zip(node.slots, values, strict=True):
            name = "y" if name == "u" else name
            if slots.setdefault(name, value) != value:
                return None
        return node.told, slots


def _classes(form: str) -> list[str]:
    """Return the classes of a form's tokens: of its slots, and of the words between them."""
    found: list[str] = []
    for piece in form.split():
        slot = _SLOT.match(piece)
        if slot:
            name = slot[1]
            found.append(_CLASSES.get(name) or ("H" if name.isupper() else "T"))
        else:
            tokens: list[Token] = tokens_of(piece) or []
            found += [token for token, _ in tokens]
    return found
