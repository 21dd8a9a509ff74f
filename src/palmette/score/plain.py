"""Compares answers without algebra: normalizes LaTeX, then compares exact numbers and words."""

import re
from dataclasses import dataclass
from fractions import Fraction

# The longest answer in MATH500 has 53 characters. At this length int() and Fraction() still take under a millisecond.
LONGEST_ANSWER = 2_000


def canonical(answer: str) -> str:
    r"""Return a normal form of an answer: `1000` for `\$1,000.00`, `1/2` for `0.5`, `Eve` for `\text{Eve}`.

    Used to group votes without a worker process: answers with equal forms are equal, but equal answers may have
    different forms if only algebra could tell. An answer of more than `LONGEST_ANSWER` characters is returned
    unchanged.
    """
    if len(answer) > LONGEST_ANSWER:
        return answer
    tidy = tidied(answer)
    number = _read_number(tidy)
    return _squeeze(tidy) if number is None else str(number.value)


def compare_plain(answer: str, reference: str) -> bool | None:
    """Return whether two texts, both from `tidied`, are equal answers, or None if only algebra can tell."""
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
    return _compare_words(answer, reference)


# --- Tidying: removes LaTeX that does not change an answer ---

_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|\\[!,;: ()\[\]]|[$€£¥₹~\u00a0]")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm)?|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|\u00b0")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|([0-9]))\s*(?:\{([^{}]*)\}|([0-9]))")
_ONE_IN_BRACES = re.compile(r"([_^])\{([0-9A-Za-z])\}")


def tidied(text: str) -> str:
    r"""Remove spacing commands, dollar signs, `\text`, degrees, end punctuation; write fractions as `\frac{a}{b}`."""
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9]{3})", ",", text)  # 10\,080
    text = text.replace("\\$", "").replace("\\%", "%").replace("{,}", ",").replace("\u2212", "-")
    text = _TEXT.sub(r" \1 ", text)
    # `10,\! 080` is one number: remove the space after a negative space too.
    text = _SPACING.sub(" ", re.sub(r"\\!\s*", "", text))
    text = _FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", _DEGREES.sub("", text))
    return " ".join(_ONE_IN_BRACES.sub(r"\1\2", text).split()).strip("*`").rstrip(" .,;:")


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
    )(?P<suffix>[^0-9]*|\s*[A-Za-z.]+\s*\^?[23])""",
    re.VERBOSE,
)
_PERCENT = re.compile(r"\s*(?:%|percent|pct)", re.IGNORECASE)
_KNOWN_UNIT = (
    r"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?"
    r"(?:mm|cm|km|ft|in|yd|mi|kg|mg|lbs?|oz|hrs?|mins?|secs?|ml|mph|[ap]m"
    r"|meters?|inch(?:es)?|feet|foot|yards?|miles?|units?|degrees?|radians?|dollars?|cents?|hours?|minutes?|seconds?)"
    r"(?:\^?[23])?\.?"
)
# After a number and a space any word may be a unit, except words that change the value. Without the space, or with at
# most two letters, only known units count: `2ab` and `2 pi` are products.
_UNIT = re.compile(
    rf"\s*{_KNOWN_UNIT}"
    r"|(?:\s+(?:[A-Za-z]{3,20}|an?|of|in|at|to|by|on|is)\b,?){1,6}(?:\s*\^?[23])?",
    re.IGNORECASE,
)
_SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_VALUE_WORD = re.compile(
    r"\b(?:hal(?:f|ves)|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?"
    r"|squared|cubed|factorial|roots?|sqrt|power|plus|minus|over|divided|infinity|alpha|beta|gamma|delta|theta|lambda"
    r"|sigma|omega|phi|tau|log|sin|cos|tan|exp|zero|one|two|three|four|five|six|seven|eight|nine|ten"
    r"|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
    rf"|(?:{'|'.join(_SCALES)})s?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Number:
    """An exact value, the number of decimal places it was written with, and whether a percent sign followed."""

    value: Fraction
    places: int
    is_percent: bool

    def equals(self, other: "_Number") -> bool:
        if self._rounds(other.value, other.places):
            return True
        if self.is_percent == other.is_percent:
            return False
        share, plain = (self, other) if self.is_percent else (other, self)
        return plain._rounds(share.value / 100, share.places + 2)

    def _rounds(self, value: Fraction, places: int) -> bool:
        """Return whether the values are equal, or differ only by rounding to six or more decimal places.

        math-verify rounds to six places, which makes all values near zero equal; the relative bound keeps them apart.
        """
        difference = abs(self.value - value)
        is_close = difference <= Fraction(1, 10**6) and difference <= abs(value) / 10**5
        return difference == 0 or (max(self.places, places) >= 6 and is_close)


def _read_number(tidy: str) -> _Number | None:
    """Return the number in a tidied text, or None: integer, decimal, fraction or mixed number, with or without unit."""
    match = _NUMBER.fullmatch(tidy)
    scale = None if match is None else _read_suffix(match["suffix"])
    if match is None or scale is None:
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
    return _Number(value * scale, places, is_percent=_PERCENT.match(match["suffix"]) is not None)


def _read_suffix(suffix: str) -> int | None:
    """Return the factor of what follows a number: 1 for a unit, 10**6 for `million`, None if it is not a unit."""
    suffix = _PERCENT.sub("", suffix, count=1)
    first, _, rest = suffix.strip().partition(" ")
    scale = _SCALES.get(first.lower(), 1)
    unit = f" {rest}" if scale > 1 and rest else "" if scale > 1 else suffix
    if not unit.strip():
        return scale
    return scale if _UNIT.fullmatch(unit) and not _VALUE_WORD.search(unit) else None


_TRAILING_UNIT = re.compile(
    rf"(?<=\S)(?:\s*\\(?:text|mbox|mathrm)\s*\{{[^{{}}]*\}}(?:\^\{{?[23]\}}?)?|\s+{_KNOWN_UNIT})[\s$.]*$", re.IGNORECASE
)


def without_unit(text: str) -> str:
    r"""Remove the unit at the end of an expression such as `12\pi \text{ cm}^2` or `12\pi square inches`."""
    return _TRAILING_UNIT.sub("", text)


# --- Words ---

_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z' -]*\)?")
_BASED = re.compile(r"([0-9]+)_\{?([0-9]+)\}?")


def _compare_words(answer: str, reference: str) -> bool | None:
    """Return whether two words are equal, ignoring case; None if they may be products of variables.

    math-verify reads words as products, so that `seat` equals `east`; here four letters in a row are a word.
    """
    if not (_WORDS.fullmatch(answer) and _WORDS.fullmatch(reference)):
        return None
    if _word_key(answer) == _word_key(reference) and re.search(r"[A-Za-z]{3}|\([A-Z]\)", reference):
        return True
    return False if re.search(r"[A-Za-z]{4}|\([A-Z]\)", reference) else None


def _word_key(tidy: str) -> str:
    return tidy.strip("()").replace(" ", "").replace("-", "").casefold()
