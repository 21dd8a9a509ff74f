"""Writes the many spellings of an answer in one way, by rules that do not change what it means."""

import re
from unicodedata import normalize

from palmette.score.units import in_words

_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|\\[!,;: ()\[\]]|[$~\u00a0]")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm)?|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|\u00b0")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|([0-9]))\s*(?:\{([^{}]*)\}|([0-9]))")
_CURRENCIES = {
    "\uff04": "dollars", "USD": "dollars", "€": "euros", "EUR": "euros", "£": "pounds", "GBP": "pounds", "¥": "yen",
    "₹": "rupees",
}  # fmt: skip
_SIGN = re.compile("[\uff04€£¥₹]")
_MONEY = re.compile(
    rf"(?P<minus>-?)\s*(?P<sign>{'|'.join(_CURRENCIES)})\s*"
    r"(?P<amount>-?[0-9.][0-9.,/ ]*(?:(?:hundred|thousand|million|billion|trillion)(?![a-z]) ?)*)(?P<rest>[A-Za-z].*)?"
)
_ONE_IN_BRACES = re.compile(r"([_^])\{([0-9A-Za-z])\}")


_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_REPEATING = re.compile(r"(?<![0-9])([0-9]*)\.([0-9]*)\\overline\s*\{?([0-9]+)\}?")
_CLOCK = re.compile(r"(?<=[0-9])\s*([ap])\.?\s?m(?![A-Za-z])\.?", re.IGNORECASE)
_TEMPERATURE = re.compile(rf"(?:{_DEGREES.pattern})\s*(?:\\text|\\mathrm)?\s*\{{?\s*([CF])\s*\}}?\s*$")
_PRIMES = re.compile(r"\^\s*\{?\s*((?:\\prime(?![A-Za-z])\s*)+)\}?")


def spelled(text: str) -> str:
    r"""Write signs that LaTeX has no room for in LaTeX.

    `–5` becomes `-5`, `½` becomes `\frac{1}{2}`, `0.\overline{3}` becomes `\frac{3}{9}`, `5x10^3` becomes
    `5 \times 10^3`, `5^\circ C` becomes `5 celsius`, `6 P.M.` becomes `6 pm`, `f^\prime` becomes `f'`,
    the choice `B)` becomes `B`.
    """
    text = re.sub(r"(^|[(\[{,=$])(\s*)\u2013", r"\1\2-", text.replace("\u2212", "-"))  # not in the range 5–10
    text = _VULGAR.sub(lambda m: "\\frac{{{}}}{{{}}}".format(*normalize("NFKC", m[0]).split("\u2044")), text)
    text = re.sub(r"(?<=[0-9])\s*[x\u00d7]\s*(?=10\s*\^)", r" \\times ", text)
    text = _TEMPERATURE.sub(lambda m: " celsius" if m[1] == "C" else " fahrenheit", _REPEATING.sub(_as_fraction, text))
    text = _CLOCK.sub(lambda m: f" {m[1].lower()}m", text)
    text = _PRIMES.sub(lambda m: "'" * m[1].count("prime"), text.replace("\u2019", "'"))
    return re.sub(r"^\s*([A-Z])\)\s*$", r"\1", text)


def _as_fraction(match: re.Match[str]) -> str:
    """Return a repeating decimal as a fraction: 1.0666... is (106 - 10) / 90."""
    before, again = match[1] + match[2], match[3]
    top = int(before + again) - int(before or 0)
    return f"\\frac{{{top}}}{{{(10 ** len(again) - 1) * 10 ** len(match[2])}}}"


def tidied(text: str) -> str:
    r"""Remove spacing commands, `\text`, degrees, end punctuation; write fractions as `\frac{a}{b}`.

    A currency sign before a number becomes its word: `\$5` is `5 dollars`. Other currency signs are removed.
    """
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9]{3})", ",", spelled(text))  # 10\,080
    text = text.replace("\\$", "\uff04").replace("\\%", "%").replace("{,}", ",")
    if text.count("$") == 1:  # else they are the borders of a formula
        text = re.sub(r"\$(?=\s*[0-9.])", "\uff04", text)
    text = _TEXT.sub(lambda m: f" {in_words(m[1])} ", text)
    # `10,\! 080` is one number: remove the space after a negative space too.
    text = _SPACING.sub(" ", re.sub(r"\\!\s*", "", text))
    text = _FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", _DEGREES.sub("", text))
    tidy = " ".join(_ONE_IN_BRACES.sub(r"\1\2", text).split()).strip("*`").rstrip(" .,;:")
    if money := _MONEY.fullmatch(tidy):
        sign, amount, rest = _CURRENCIES[money["sign"]], money["amount"].strip(), money["rest"] or ""
        return f"{money['minus']}{amount} {sign} {rest}".strip()
    return " ".join(_SIGN.sub(" ", tidy).split())


def with_meters(text: str, other: str) -> str:
    """Write a final `m` as meters if the other answer, a text from `tidied`, has meters; else it may be a variable."""
    return _FINAL_M.sub(" meters", text) if _METERS.search(other) else text


_FINAL_M = re.compile(r"(?<=[0-9}\s])m(?=(?:\^?[23])?$)")
_METERS = re.compile(r"(?<![A-Za-z])met(?:er|re)s?(?![A-Za-z])", re.IGNORECASE)
