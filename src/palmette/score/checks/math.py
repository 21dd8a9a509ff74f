"""Compares two LaTeX texts with math-verify."""

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from palmette.score.checks import formula

LIBRARY = "math_verify"
_BARE_PI, _PI = re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "
# Checked once before the walls are up: the libraries load parts of themselves when they first need them.
_USUAL = (
    ("x^2 + 2x + 1", "(x+1)^2"), (r"\frac{1}{2}, 3", r"3, 0.5"), (r"\sqrt{20}", r"2 \sqrt{5}"), ("(1, 2]", "[1, 2)"),
    ("x = 5", "5"), (r"\{1, 2\}", r"\{2, 1\}"), (r"1 \pm \sqrt{3}", r"1 + \sqrt{3}, 1 - \sqrt{3}"), ("2 > x", "x < 2"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}"), (r"\sin(\pi)", "5!"),
)  # fmt: skip


def load() -> Callable[[dict[str, Any]], Callable[[], str]]:
    """Load math-verify; return a function that makes the check of a request with `answer` and `reference`."""
    library: Any = importlib.import_module(LIBRARY)
    formula.take_the_place_of_eval(LIBRARY)
    for answer, reference in _USUAL:
        _compare(library, answer, reference)
    return lambda request: partial(_compare, library, request["answer"], request["reference"])


def _read(library: Any, text: str) -> list[Any]:
    """Parse one answer as LaTeX; return an empty list if it is not LaTeX.

    Only the LaTeX parser of math-verify is used: its other parser takes the first number of any text. The removal of
    units is off: its units include `t`, `h`, `c` and `ab`, so that `2x + 3t` would equal `2x + 3`.
    """
    line = " ".join(text.replace("\\$", "").replace("$", "").replace("**", "^").split())
    reader = library.LatexExtractionConfig()
    found = library.parse(
        f"${_BARE_PI.sub(_PI, line)}$",
        extraction_config=[replace(reader, normalization_config=replace(reader.normalization_config, units=False))],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return list(found)


def _compare(library: Any, answer: str, reference: str) -> str:
    """Return the outcome for one answer; an error while comparing means `wrong`. Raises nothing but MemoryError."""
    try:
        target = _read(library, answer)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  model text can raise anything in a parser
        target = []
    if not target:
        return "unparseable"
    try:
        gold = _read(library, reference)
        is_equal = library.verify(gold, target, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
        return "correct" if is_equal else "wrong"
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  as above
        return "wrong"
