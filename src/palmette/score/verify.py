r"""Verifies answers against reference answers; the outcome is correct, wrong, unparseable or timed out.

Plain numbers and words are compared exactly in this process (`plain`). Everything else is compared by math-verify in a
worker process with a time limit (`sandbox`), so that no text, however long or hostile, can hang or crash a call.
"""

from enum import Enum

from palmette.errors import ConfigError
from palmette.score import sandbox
from palmette.score.extract import extract_answer, extract_reference
from palmette.score.plain import LONGEST_ANSWER, canonical, compare_plain
from palmette.score.spelling import spelled, tidied, with_meters
from palmette.score.units import split_unit

__all__ = ["Outcome", "canonical", "extract_answer", "extract_reference", "grade", "verify"]

LONGEST_SECONDS = 3_600


class Outcome(str, Enum):
    """The result of checking an answer. `timed_out` means that the check ran out of time or of the worker's memory."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    TIMED_OUT = "timed_out"

    def __str__(self) -> str:
        return self.value


def grade(solution: str, reference: str, *, seconds: float = 5.0) -> Outcome:
    """Extract the final answers of a solution and of a reference and verify the one against the other.

    The reference may be a bare answer or a worked solution. See `verify` for `seconds` and for what is raised; raises
    ConfigError for what is no text, too.
    """
    for name, text in (("solution", solution), ("reference", reference)):
        if not isinstance(text, str):
            raise ConfigError(f"the {name} to grade is a text, not a {type(text).__name__}")
    return verify(extract_answer(solution), extract_reference(reference), seconds=seconds)


def verify(answer: str | None, reference: str, *, seconds: float = 5.0) -> Outcome:
    r"""Check an answer against a reference answer, both LaTeX or plain text. Safe to call from any thread.

    Degree signs are ignored, and so are currencies and the units of `units` if only one of the two has them; two
    measures have to be the same: `5 feet` is not `5 inches`, `\$5` not `5 cents`. `50%` equals both `50` and `0.5`. A
    decimal with six or more places equals the value it is rounded from. Phrases such as `7 remainder 2` are compared
    word by word. An answer that is None, empty or longer than `LONGEST_ANSWER` characters is `unparseable`. The check
    ends after `seconds`, not counting the time to wait for checks of other threads and for a worker to start. Raises
    ConfigError if `seconds` is not in (0, 3600], PalmetteError if math-verify is needed but cannot be loaded.
    """
    if not _is_time(seconds):
        raise ConfigError(
            f"cannot check an answer in {seconds!r} s: give more than 0 and at most {LONGEST_SECONDS}, for example 5.0"
        )
    if answer is None or len(answer) > LONGEST_ANSWER or not (tidy := tidied(answer)):
        return Outcome.UNPARSEABLE
    if len(reference) > LONGEST_ANSWER:
        return Outcome.WRONG
    expected = tidied(reference)
    is_equal = compare_plain(tidy, expected)
    if is_equal is None:
        bare, _ = split_unit(with_meters(spelled(answer), expected))
        bare_reference, _ = split_unit(with_meters(spelled(reference), tidy))
        return Outcome(sandbox.math.check_math(bare, bare_reference, seconds))
    return Outcome.CORRECT if is_equal else Outcome.WRONG


def _is_time(seconds: object) -> bool:
    """Return whether a value is a number of seconds that a check may take; callers may give anything."""
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_SECONDS
