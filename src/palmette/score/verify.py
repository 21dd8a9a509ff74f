r"""Answers checked against references, with four outcomes counted apart.

Plain numbers and plain words are compared exactly (`plain`); everything else goes to math-verify in a worker process
(`sandbox`) that can be stopped. No text, however long or hostile, hangs or crashes a call.
"""

from enum import Enum

from palmette.errors import ConfigError
from palmette.score import sandbox
from palmette.score.extract import extract_answer, extract_reference
from palmette.score.plain import LONGEST_ANSWER, canonical, compare_plain, tidied, without_unit

__all__ = ["Outcome", "canonical", "extract_answer", "extract_reference", "grade", "verify"]

LONGEST_SECONDS = 3_600


class Outcome(str, Enum):
    """What a check found. `timed_out` is any check that ran out of its time or of the worker's memory."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    TIMED_OUT = "timed_out"

    def __str__(self) -> str:
        return self.value


def grade(solution: str, reference: str, *, seconds: float = 5.0) -> Outcome:
    """Check the final answer of a solution text against that of a reference, which may be a worked one."""
    return verify(extract_answer(solution), extract_reference(reference), seconds=seconds)


def verify(answer: str | None, reference: str, *, seconds: float = 5.0) -> Outcome:
    """Check an extracted answer against a final answer, both LaTeX or plain. Safe to call from any thread.

    Units, currency and degree signs do not count; `50%` equals both `50` and `0.5`. A decimal with six places or more
    equals what it rounds. None, an empty answer or one above `LONGEST_ANSWER` characters are `unparseable`. The check
    ends `seconds` after it starts; a call may first wait for the checks of other threads and for a worker to start.
    Raises ConfigError on a time that is none, PalmetteError when math-verify is needed but cannot be loaded.
    """
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ConfigError(
            f"cannot check an answer in {seconds} s: give more than 0 and at most {LONGEST_SECONDS}, for example 5.0"
        )
    if answer is None or len(answer) > LONGEST_ANSWER or not (tidy := tidied(answer)):
        return Outcome.UNPARSEABLE
    if len(reference) > LONGEST_ANSWER:
        return Outcome.WRONG
    is_equal = compare_plain(tidy, tidied(reference))
    if is_equal is None:
        return Outcome(sandbox.math.check_math(without_unit(answer), without_unit(reference), seconds))
    return Outcome.CORRECT if is_equal else Outcome.WRONG
