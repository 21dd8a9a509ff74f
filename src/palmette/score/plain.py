"""Compares answers without algebra: exact numbers, units, words, lists."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from palmette.score.spelling import tidied, with_meters
from palmette.score.units import Unit, read_unit, split_unit, usual_name

# The longest answer in MATH500 has 53 characters. At this length int() and Fraction() still take under a millisecond.
LONGEST_ANSWER = 2_000


def canonical(answer: str) -> str:
    r"""Return a normal form of an answer: `1000` for `1,000.00`, `1/2` for `0.5`, `Eve` for `\text{Eve}`.

    Used to group votes without a worker process: answers with equal forms are equal, but equal answers may have
    different forms if only algebra could tell. A measure stands behind a thin space, for `join_votes`; things that are
    counted are left out. An answer of more than `LONGEST_ANSWER` characters is returned unchanged.
    """
    if len(answer) > LONGEST_ANSWER:
        return answer
    tidy = tidied(answer)
    number = _read_number(tidy)
    if number is None:
        return _squeeze(tidy)
    if number.unit is None or not number.unit.measure:
        return str(number.value)
    return f"{number.value}{' ' if number.unit.changes_value else _THIN_SPACE}{number.unit.measure}"


_THIN_SPACE = "\u2009"  # no other form has one: `tidied` makes plain spaces of them


def join_votes(forms: Sequence[str]) -> list[str]:
    """Return the forms that the votes of one question have in common, in order.

    A measure is removed where no other one follows the same number: `5 cm` votes with `5`, unless there is a `5 mm`.
    Then all three are different answers.
    """
    measures: dict[str, set[str]] = {}
    for form in forms:
        value, _, measure = form.partition(_THIN_SPACE)
        measures.setdefault(value, set()).update([measure] if measure else [])
    values = [form.partition(_THIN_SPACE)[0] for form in forms]
    return [value if len(measures[value]) == 1 else form for form, value in zip(forms, values, strict=True)]


def compare_plain(answer: str, reference: str) -> bool | None:
    """Return whether two texts, both from `tidied`, are equal answers, or None if only algebra can tell."""
    answer, reference = with_meters(answer, reference), with_meters(reference, answer)
    number, expected = _read_number(answer), _read_number(reference)
    if number is not None and expected is not None:
        return number.equals(expected)
    if _squeeze(answer) == _squeeze(reference):
        return True
    based, expected_based = _BASED.fullmatch(answer), _BASED.fullmatch(reference)
    # math-verify drops the base of a number: to it 52_8, 52_9 and 52 are equal. We accept that only from an answer that
    # omits the base of its reference; an answer with a base is compared here.
    if based and expected_based:
        return based.groups() == expected_based.groups()
    if based and expected is not None:
        return based[2] == "10" and int(based[1]) == expected.value
    for compare in (_compare_words, _compare_sentences, _compare_lists):
        is_equal = compare(answer, reference)
        if is_equal is not None:
            return is_equal
    return False if _differ_in_marks(answer, reference) else None


def _squeeze(tidy: str) -> str:
    """Remove every space that does not have a letter or digit on both sides."""
    return re.sub(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])", "", tidy)


# --- Numbers ---

_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?:[ ][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)\s*(?:
        (?:(?P<whole>[0-9]+)\s*)? \\frac\{{\s*(?P<top>[-+]?\s*[0-9]+)\s*\}}\{{\s*(?P<bottom>[0-9]+)\s*\}}
        | (?:(?P<plain_whole>[0-9]+)\s+)? (?P<plain_top>[0-9]+)\s*/\s*(?P<plain_bottom>[0-9]+)
        | (?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>[-+]?[0-9]{{1,3}}))?
    )(?P<suffix>(?![0-9]).*)""",
    re.VERBOSE,
)
_PERCENT = re.compile(r"\s*(?:%|percent|pct)", re.IGNORECASE)
_SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


@dataclass(frozen=True)
class _Number:
    """An exact value, the number of decimal places it was written with, whether a percent sign followed, its unit."""

    value: Fraction
    places: int
    is_percent: bool
    unit: Unit | None

    def equals(self, other: "_Number") -> bool:
        if self.unit and other.unit and self.unit.contradicts(other.unit):
            return False
        if self._rounds(other.value, other.places):
            return True
        if self.is_percent == other.is_percent:
            return False
        share, plain = (self, other) if self.is_percent else (other, self)
        return plain._rounds(share.value / 100, share.places + 2)

    def _rounds(self, value: Fraction, places: int) -> bool:
        """Return whether the values are equal, or one is the other rounded or cut off after six or more decimal places.

        From twelve places on the last digits may be those of a float. math-verify rounds both to six places, which
        makes all values near zero equal; the relative bound keeps them apart.
        """
        difference = abs(self.value - value)
        rounded = [count for count in (self.places, places) if count >= 6]
        if difference == 0 or not rounded:
            return difference == 0
        return difference < Fraction(1, 10 ** min(12, *rounded)) and difference <= abs(value) / 10**5


def _read_number(tidy: str) -> _Number | None:
    """Return the number in a tidied text, or None: integer, decimal, fraction or mixed number, with or without unit."""
    match = _NUMBER.fullmatch(tidy)
    suffix = None if match is None else _read_suffix(match["suffix"])
    if match is None or suffix is None:
        return None
    places = 0
    if match["decimal"]:
        digits = match["decimal"].replace(",", "").replace(" ", "")
        value = Fraction(digits) * Fraction(10) ** int(match["exponent"] or 0)
        places = len(digits.partition(".")[2])
    else:
        whole = int(match["whole"] or match["plain_whole"] or 0)
        top = int((match["top"] or match["plain_top"]).replace(" ", ""))
        bottom = int(match["bottom"] or match["plain_bottom"])
        if bottom == 0 or (whole and top < 0):
            return None
        value = whole + Fraction(top, bottom)
    value *= -1 if match["sign"] == "-" else 1
    scale, unit = suffix
    return _Number(value * scale, places, _PERCENT.match(match["suffix"]) is not None, unit)


def _read_suffix(suffix: str) -> tuple[int, Unit | None] | None:
    """Return the factor (10**6 for `million`) and the unit of what follows a number, None if it is anything else."""
    rest = _PERCENT.sub("", suffix, count=1)
    scale = 1
    while (word := rest.strip().partition(" "))[0].lower() in _SCALES:  # two hundred thousand
        scale *= _SCALES[word[0].lower()]
        rest = f" {word[2]}"
    if not rest.strip():
        return scale, None
    unit = read_unit(rest)
    return None if unit is None else (scale, unit)


# --- Words ---

_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z' -]*\)?")
_BASED = re.compile(r"([0-9]+)_\{?([0-9]+)\}?")


def _compare_words(answer: str, reference: str) -> bool | None:
    """Return whether two words are equal, ignoring case; None if they may be products of variables.

    math-verify reads words as products, so that `seat` equals `east`; here four letters in a row are a word.
    """
    if not (_WORDS.fullmatch(answer) and _WORDS.fullmatch(reference)):
        return None
    if re.fullmatch("[A-Za-z]{3}", reference) and answer.casefold() == reference.casefold():
        return answer.isupper() == reference.isupper() or answer.casefold() == "yes"  # ABC may be a triangle
    if _same_words(answer, reference) and re.search(r"[A-Za-z]{3}|\([A-Z]\)", reference):
        return True
    return False if re.search(r"[A-Za-z]{4}|\([A-Z]\)", reference) else None


_HYPHEN = re.compile(r"(?<=[A-Za-z]{4})-(?=[A-Za-z]{3})|(?<=[A-Za-z]{3})-(?=[A-Za-z]{4})")


def _same_words(answer: str, reference: str) -> bool:
    """Return whether the letters are the same, whatever their case; a hyphen beside fewer than four is a minus."""
    one, two = answer.strip("()"), reference.strip("()")
    if re.search("[A-Za-z]{4}", one) and re.search("[A-Za-z]{4}", two):
        if one.replace("-", " ").casefold() == two.replace("-", " ").casefold():
            return True
        one, two = _HYPHEN.sub("", one), _HYPHEN.sub("", two)
    return one.replace(" ", "").casefold() == two.replace(" ", "").casefold()


_NAMES = re.compile(r"\\(?:begin|end|operatorname|math[a-z]+)\s*\{[^{}]*\}|\\[A-Za-z]+")
_MATHEMATICS = {
    "sqrt", "frac", "infty", "infinity", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "alpha", "beta", "gamma",
    "delta", "theta", "lambda", "sigma", "omega",
}  # fmt: skip
_LONG_WORD = re.compile(r"[A-Za-z]{4,}")
# Short words that make a phrase of the numbers around them; `and` and `or` are left to math-verify, which knows them.
_SHORT_WORD = re.compile(
    r"(?<![A-Za-z])(?:to|by|of|at|on|is|am|pm|per|for|vs|out|the|than|not|rem|mod)(?![A-Za-z])|[0-9]\s*[rR]\s*[0-9]"
)
_PIECE = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?|[a-z]+|\S")


def _compare_sentences(answer: str, reference: str) -> bool | None:
    """Return whether two phrases say the same, None if neither is one.

    math-verify reads the letters of `1 to 2` and `3 feet 2 inches` as factors, whatever their order: to it they equal
    `2 to 1` and `2 feet 3 inches`. Phrases are compared word by word and number by number.
    """
    (answer, unit), (reference, expected) = split_unit(answer), split_unit(reference)
    if unit and expected and unit.contradicts(expected):
        return False
    if not (_is_phrase(answer) or _is_phrase(reference)):
        return None
    return _phrase(answer) == _phrase(reference)


def _is_phrase(tidy: str) -> bool:
    plain = _NAMES.sub(" ", tidy)
    words = set(_LONG_WORD.findall(plain.lower()))
    return bool(words - _MATHEMATICS) or _SHORT_WORD.search(plain) is not None


def _phrase(tidy: str) -> list[str]:
    text = re.sub(r"(?<=[0-9])\s*r\s*(?=[0-9])", " remainder ", tidy.lower())
    text = re.sub(r"(?<=[a-z]) and (?=[0-9])", " ", text)  # 2 hours and 30 minutes
    return [canonical(piece) if piece[0].isdigit() else usual_name(piece) for piece in _PIECE.findall(text)]


# --- Notation that math-verify leaves out ---

_LIST = re.compile(r"[-+]?[0-9][^,;A-Za-z(){}\[\]]*(?:[,;]\s*[-+]?[0-9.][^,;A-Za-z(){}\[\]]*)+")
_MODULUS = re.compile(r"\\[pb]?mod(?![A-Za-z])\s*\{?([^{}]*)\}?")
_PRIME = re.compile(r"[A-Za-z)]\s*'+")
_GOES_ON = re.compile(r"[0-9]\s*\\l?dots")
_TUPLE, _SET = re.compile(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]"), re.compile(r"\\\{.*\\\}")


def _compare_lists(answer: str, reference: str) -> bool | None:
    """Return whether two lists have the same numbers in any order, each as often; None if they are no such lists.

    A comma before three digits may be inside a number and is left to math-verify, which takes lists as sets.
    """
    if not (_LIST.fullmatch(answer) and _LIST.fullmatch(reference)):
        return None
    if re.search(r",[0-9]{3}(?![0-9])", f"{answer} {reference}"):
        return None
    one, two = ([_read_number(item.strip()) for item in re.split("[,;]", text)] for text in (answer, reference))
    ours, theirs = ([number for number in numbers if number] for numbers in (one, two))
    if len(ours) < len(one) or len(theirs) < len(two):
        return None
    if len(ours) != len(theirs):
        return False
    pairs = zip(*(sorted(numbers, key=lambda number: number.value) for numbers in (ours, theirs)), strict=True)
    return all(number.equals(expected) for number, expected in pairs)


def _differ_in_marks(answer: str, reference: str) -> bool:
    r"""Return whether two expressions differ in marks that math-verify drops.

    These are moduli (if both have one), primes, dots behind a digit, and the brackets of tuples against those of sets.
    """
    moduli, expected = ([_squeeze(found) for found in _MODULUS.findall(text)] for text in (answer, reference))
    if moduli and expected and moduli != expected:
        return True
    if set(_PRIME.findall(answer)) != set(_PRIME.findall(reference)):
        return True
    if bool(_GOES_ON.search(answer)) != bool(_GOES_ON.search(reference)):
        return True
    return any(_TUPLE.fullmatch(one) and _SET.fullmatch(two) for one, two in ((answer, reference), (reference, answer)))
