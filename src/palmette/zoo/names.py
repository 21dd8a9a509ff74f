"""Model names as people type them: which could be hub ids, and which are misspellings of a known name."""

import re
from collections.abc import Iterable

_HUB_ID = re.compile(r"(?:[\w][\w.-]*/)?[\w](?:[\w.-]*[\w])?", re.ASCII)
_LONGEST_HUB_ID = 96
_WORD = re.compile(r"[a-z0-9]+")
_SHORT_WORD = 3
_LONG_WORD = 8


def is_plausible_hub_id(name: str) -> bool:
    """Return whether the hub would accept a name as a model's id: `gpt2`, or `org/name`."""
    if len(name) > _LONGEST_HUB_ID or "--" in name or ".." in name or name.endswith(".git"):
        return False
    return _HUB_ID.fullmatch(name) is not None


def likely_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that differs from this one by a typing mistake, None where none does.

    Names that differ only in case or punctuation count as a mistake. Otherwise one word may differ, by one character,
    or by two in a word of eight or more. Digits must be the same, and so must short words but for two letters that
    are swapped, since these tell models apart: 7B from 8B, 2.5 from 3, `it` from `pt`.
    """
    typed = _WORD.findall(name.lower())
    candidates = {candidate: _WORD.findall(candidate.lower()) for candidate in known}
    for candidate, words in candidates.items():
        if "".join(words) == "".join(typed):
            return candidate
    return next((candidate for candidate, words in candidates.items() if _is_misspelled(typed, words)), None)


def _is_misspelled(typed: list[str], known: list[str]) -> bool:
    differing = [(one, other) for one, other in zip(typed, known, strict=False) if one != other]
    if len(typed) != len(known) or len(differing) != 1:
        return False
    one, other = differing[0]
    if _digits(one) != _digits(other):
        return False
    if len(other) <= _SHORT_WORD and not _digits(other):
        return len(other) == _SHORT_WORD and sorted(one) == sorted(other) and _edits(one, other) == 1
    return _edits(one, other) <= (2 if len(other) >= _LONG_WORD else 1)


def _digits(word: str) -> str:
    return "".join(character for character in word if character.isdigit())


def _edits(one: str, other: str) -> int:
    """Return how many characters to insert, drop, replace or swap with their neighbor to turn one into the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, character in enumerate(one, start=1):
        earlier, before, row = before, row, [place]
        for index, wanted in enumerate(other, start=1):
            row.append(min(before[index] + 1, row[-1] + 1, before[index - 1] + (character != wanted)))
            if place > 1 and index > 1 and character == other[index - 2] and one[place - 2] == wanted:
                row[-1] = min(row[-1], earlier[index - 2] + 1)
    return row[-1]
