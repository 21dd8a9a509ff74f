"""A sentence as tokens: words, holders, things, numbers and equations. Reads any text in time linear in its length."""

import re
from dataclasses import dataclass

from palmette.tasks.words.lexicon import CONTAINERS, COUNTED, PEOPLE, PLACES
from palmette.tasks.words.problem import SIGNS, Sign

LONGEST_LINE = 300
"""Characters; longer lines are not read. The longest sentence of the generator has under 120."""

_LONGEST_NUMBER = 9
_PIECE = re.compile(r"[A-Za-z]+|\.[0-9]+|[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\S")
_BROKEN = re.compile(r"[-+*/=]\s*[.,;:!?'\"]|[0-9]\s*[.,;:!?'\"]+\s*[-+*/=]")
_SPELLED = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/"})
_SKIPPED = frozenset(".,;:!?'\"()[]")
_SIGNS = frozenset(SIGNS.values())


@dataclass(frozen=True)
class Equation:
    """Numbers joined by one sign, and what they are said to be; None for a left side alone."""

    sign: Sign
    left: tuple[int, ...]
    result: int | None


Token = tuple[str, str | int | Equation]
"""A class and a value. Classes: `H` holder, `T` thing, `U` container in the singular, `N` number, `L` left side of an
equation, `E` equation; any other token is a word in lower case or a sign, which is its own class."""

_NAMES: dict[str, Token] = {
    **{name.lower(): ("H", name) for name in PEOPLE},
    **{place: ("H", f"the {place}") for place in PLACES},
    **{thing: ("T", thing) for thing in COUNTED},
    **{single: ("U", plural) for plural, single in CONTAINERS.items()},
    "x": ("*", "*"),
}


def tokens_of(sentence: str) -> list[Token] | None:
    """Return the tokens of a sentence without its punctuation; None if it is too long or has too large a number.

    Case, spaces, thousands separators and punctuation do not matter; but there is none in the middle of an equation
    (`3!+10`), where only brackets are skipped. A decimal fraction is no number of a sentence, it is a word. `the`
    before a place is part of its name.
    """
    spelled = sentence.translate(_SPELLED)
    if len(sentence) > LONGEST_LINE or _BROKEN.search(spelled):
        return None
    found: list[Token] = []
    for piece in _PIECE.findall(spelled):
        if piece in _SKIPPED:
            continue
        if piece[0] in "0123456789" and "." not in piece:
            digits = piece.replace(",", "")
            if len(digits) > _LONGEST_NUMBER:
                return None
            found.append(("N", int(digits)))
            continue
        word = piece.lower() if piece.isascii() else piece
        token = _NAMES.get(word, (word, word))
        if token[0] == "H" and word in PLACES and found and found[-1][0] == "the":
            found.pop()
        found.append(token)
    return _with_equations(found)


def _with_equations(tokens: list[Token]) -> list[Token]:
    """Return the tokens with each `3 + 4 = 7` as one token `E`, and each `3 + 4` without a result as `L`."""
    found: list[Token] = []
    place = 0
    while place < len(tokens):
        end = place + 1
        sign = tokens[end][0] if end < len(tokens) else ""
        if tokens[place][0] != "N" or sign not in _SIGNS:
            found.append(tokens[place])
            place = end
            continue
        numbers = [tokens[place][1]]
        while end + 1 < len(tokens) and tokens[end][0] == sign and tokens[end + 1][0] == "N":
            numbers.append(tokens[end + 1][1])
            end += 2
        left = tuple(number for number in numbers if isinstance(number, int))
        has_result = end + 1 < len(tokens) and tokens[end][0] == "=" and tokens[end + 1][0] == "N"
        result = tokens[end + 1][1] if has_result else None
        assert sign in ("+", "-", "*", "/") and isinstance(result, int | None)
        found.append(("E" if has_result else "L", Equation(sign, left, result)))
        place = end + 2 * has_result
    return found
