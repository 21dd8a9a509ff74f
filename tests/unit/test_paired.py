"""Differences of strategies over the same questions."""

import random

from palmette.events import Chosen, QuestionFinished
from palmette.report.paired import Difference, difference


def finished(held: float, outcome: str | None, name: str = "q") -> QuestionFinished:
    """Return a question of which nothing matters but what it held and how its vote came out."""
    chosen = Chosen("1", outcome)
    return QuestionFinished(name, {"weighted": chosen}, {}, 10, held, round(held), round(held), 2)


def run(*questions: tuple[float, str | None]) -> dict[str, QuestionFinished]:
    """Return a run of these questions."""
    return {f"q{place}": finished(*told) for place, told in enumerate(questions)}


def compared(one: dict[str, QuestionFinished], other: dict[str, QuestionFinished]) -> Difference:
    """Compare a pair of runs that have questions in common."""
    found = difference([(one, other)], "weighted")
    assert found is not None
    return found


def test_ratio_is_of_the_sums_and_votes_are_paired() -> None:
    """(30 + 90) / (10 + 30); two of four questions change, one to the better, one to the worse, then one more."""
    one = run((10, "correct"), (30, "wrong"), (20, "correct"), (20, "correct"))
    other = run((30, "wrong"), (90, "correct"), (60, "correct"), (60, "wrong"))
    found = compared(one, other)
    assert found.questions == 4
    assert found.held.value == found.held.low == found.held.high == 3
    assert found.vote is not None
    assert found.vote.value == 0.25
    assert found.vote.low < 0 < found.vote.high


def test_only_questions_of_both_count() -> None:
    """A question that one run has not finished is left out of both."""
    found = compared(run((10, "correct"), (1000, "wrong")), run((20, "correct")))
    assert (found.questions, found.held.value) == (1, 2)
    assert difference([({}, run((1, "wrong")))], "weighted") is None


def test_unjudged_questions_tell_nothing_of_the_vote() -> None:
    """They count for memory alone."""
    found = compared(run((10, None), (10, "correct")), run((20, "correct"), (20, "wrong")))
    assert found.questions == 2
    assert found.vote is not None
    assert found.vote.value == 1
    assert compared(run((10, None)), run((20, None))).vote is None


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 samples from a known distribution most intervals hold the true difference."""
    generator = random.Random(0)
    hits = 0
    for _ in range(200):
        outcomes: list[tuple[str, str]] = [
            ("correct" if generator.random() < 0.6 else "wrong", "correct" if generator.random() < 0.4 else "wrong")
            for _ in range(80)
        ]
        found = compared(run(*((1.0, one) for one, _ in outcomes)), run(*((1.0, other) for _, other in outcomes)))
        assert found.vote is not None
        hits += found.vote.low <= 0.2 <= found.vote.high
    assert 180 <= hits <= 199
