"""Pairs of answers, equal or different by construction, beside the verdict of math-verify on its own."""

import importlib
import json
from collections import Counter
from pathlib import Path

import pytest

from palmette.score.plain import canonical, join_votes
from palmette.score.verify import Outcome, verify

ROWS: list[tuple[str, str, str, str, str]] = [
    tuple(json.loads(line)) for line in Path(__file__).with_name("answer_pairs.jsonl").read_text("utf-8").splitlines()
]
"""Answer, reference, `equal` or `different`, what math-verify says, and why palmette says something else."""

REASONS = {
    "": "the same verdict",
    "spelling": "math-verify does not read 1 000, 1e3, 1 1/2, 5x10^3, ½, **, a bare pi, or a full stop at the end",
    "scale word": "math-verify does not read million, dozen and their like",
    "unit not listed": "math-verify reads the letters of a unit that it does not list as factors",
    "other unit": "math-verify removes feet, inches, am and pm without looking which of them it was",
    "letters as units": "math-verify removes the letters a, b, t and others as units",
    "phrase": "math-verify reads the letters of words as factors, which come in any order and case",
    "base": "math-verify removes the base of a number",
    "rounding": "math-verify rounds both to six decimal places, however small the number and however it is written",
    "notation": "math-verify drops moduli, primes and dots, and takes lists and tuples for sets",
    "neither": "neither knows that i is a number, or that degrees of an angle are a factor",
}
PATIENT = 3600.0


def test_there_are_more_than_500_pairs_and_a_reason_for_every_difference() -> None:
    assert len({row[:2] for row in ROWS}) == len(ROWS) >= 500
    told = Counter(why for _, _, _, _, why in ROWS)
    assert set(told) == set(REASONS)
    assert told["neither"] == 2
    for answer, reference, truth, theirs, why in ROWS:
        assert (truth == theirs) == (why == ""), (answer, reference)


def test_every_pair_gets_the_verdict_it_was_made_for() -> None:
    for answer, reference, truth, _, why in ROWS:
        found = verify(answer, reference, seconds=PATIENT) is Outcome.CORRECT
        assert found == (truth == "equal") or why == "neither", (answer, reference)


def test_different_answers_are_never_one_vote() -> None:
    for answer, reference, truth, _, _ in ROWS:
        if truth == "different":
            one, two = join_votes([canonical(answer), canonical(reference)])
            assert one != two, (answer, reference)


def test_the_verdicts_of_math_verify_are_those_on_record() -> None:
    library = importlib.import_module("math_verify")
    for answer, reference, _, theirs, _ in ROWS:
        gold, target = (library.parse(f"${text}$", parsing_timeout=None) for text in (reference, answer))
        found = library.verify(gold, target, timeout_seconds=None)
        assert ("equal" if found else "different") == theirs, (answer, reference)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("7 remainder 2", "7 remainder 2"), ("2 and 3", "2 and 3"), ("1 to 3", "1 to 3"), ("5 times 2", "5 times 2"),
        ("5 pm", "5 pm"), ("5 A.M.", "5 am"), ("3 feet 2 inches", "3 feet 2 inches"),
        ("5 eggs", "5"), ("5 eggs per day", "5\u2009day^-1"), ("5 cm^2", "5\u2009centimeter^2"), ("€5", "5\u2009euro"),
        ("1 cup of sugar", "1\u2009cup of sugar"),
    ],
)  # fmt: skip
def test_forms_lose_what_is_counted_and_nothing_else(answer: str, form: str) -> None:
    assert canonical(answer) == form


def test_a_number_votes_with_its_measure_unless_there_are_two() -> None:
    def joined(*answers: str) -> list[str]:
        return join_votes([canonical(answer) for answer in answers])

    assert joined("5 cm", "5", "5 centimeters", "6 mm") == ["5", "5", "5", "6"]
    assert joined("5 cm", "5", "5 mm") == ["5\u2009centimeter", "5", "5\u2009millimeter"]
    assert joined("5 pm", "5") == ["5 pm", "5"]
    assert joined() == []
