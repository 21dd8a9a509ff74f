"""What a user's own parts raise and return: errors told with the part's name, numbers made plain."""

import inspect
import math
import operator
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from reprlib import Repr
from typing import Any

from palmette.errors import PalmetteError
from palmette.units import describe_error, one_line

_BEYOND = 2**63
"""No token, count or size of a run is as large; larger numbers overflow where they are added up."""


def name_of(part: Any) -> str:
    """Return the name of a part for messages: of a class or a function its own, of an object that of its class.

    An object that stands for another one tells that one's name as `part_name`.
    """
    for name in (getattr(part, "part_name", None), getattr(part, "__name__", None)):
        if isinstance(name, str):
            return name
    return type(part).__name__


def place_in(part: Any, error: BaseException) -> str | None:
    """Return `file.py:LINE`, the innermost line of the part's own file that an error passed; None if it passed none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(part if inspect.isroutine(part) else type(part)))
    except (TypeError, ValueError):
        return None
    lines = [
        frame.lineno
        for raised in (error, error.__cause__)
        if raised is not None
        for frame in traceback.extract_tb(raised.__traceback__)
        if frame.filename == file
    ]
    return f"{one_line(str(file), 300)}:{lines[-1]}" if lines else None


@contextmanager
def telling(kind: str, name: str, where: str, error: type[PalmetteError]) -> Iterator[None]:
    """Raise any error of the block as `error`, chained, with the part that it came from and `where` in the part.

    palmette's own errors pass unchanged, and so does MemoryError.
    """
    try:
        yield
    except (PalmetteError, MemoryError):
        raise
    except Exception as raised:
        raise error(f"{kind} {one_line(name, 120)} failed in {where}: {describe_error(raised)}") from raised


def shown(value: Any) -> str:
    """Return a value and its type as one short line, whatever the value is."""
    try:
        text = one_line(_SHORT.repr(value), 80)
    except ValueError:  # An integer with more digits than Python prints.
        return f"a {type(value).__name__}"
    return f"{text} ({type(value).__name__})"


def whole_number(value: Any) -> int:
    """Return a whole number of any library as an int. Raises ValueError for anything else and from 2**63 on."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ValueError("no whole number")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError("no whole number") from None
    if not -_BEYOND < number < _BEYOND:
        raise ValueError("too large")
    return number


def finite_number(value: Any) -> float:
    """Return a number of any library as a float. Raises ValueError for texts, NaN, infinity and anything else."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):  # NumPy has texts with __float__
        raise ValueError("no number")
    try:
        number = float(value)
    except Exception as error:  # An int that no float holds, an array of several numbers.
        raise ValueError("no number") from error
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80
