"""Guesses from texts, chances from counts, and the number of guesses that pays."""

import random

import pytest

from palmette.engine import drafts
from palmette.engine.drafts import Acceptance, Guess, Index, tick_cost, worthwhile
from palmette.engine.limits import DRAFTED_TICK_TOKENS


def tokens(guesses: list[Guess]) -> list[int]:
    return [guess.token for guess in guesses]


def test_what_followed_the_same_tokens_is_proposed_and_the_longest_context_decides() -> None:
    index = Index()
    index.feed([], [1, 2, 3, 4, 5, 6])
    assert tokens(index.propose([9, 3, 4], 8)) == [5, 6]
    assert [guess.kind for guess in index.propose([9, 3, 4], 8)] == [(2, 1), (3, 1)]
    index.feed([7, 8, 3], [4, 9])
    index.feed([7, 8, 3], [4, 9])
    # After 4 the majority wrote 9; after 2, 3, 4 it was 5.
    assert tokens(index.propose([4], 1)) == [9]
    assert tokens(index.propose([2, 3, 4], 2)) == [5, 6]
    assert index.propose([100], 4) == []
    assert tokens(index.propose([1], 3)) == [2, 3, 4]


def test_the_majority_stays_until_it_is_outvoted() -> None:
    index = Index()
    for token in (5, 5, 6, 6):
        index.feed([1], [token])
    assert index.propose([1], 1) == [Guess(5, (1, 0))]
    index.feed([1], [6])
    assert index.propose([1], 1) == [Guess(6, (1, 1))]
    for _ in range(9):
        index.feed([1], [6])
    assert index.propose([1], 1) == [Guess(6, (1, 3))]


def test_nothing_is_proposed_after_a_token_that_ended_a_step() -> None:
    index = Index()
    index.feed([], [1, 2, 3, 4])
    index.end(3)
    assert tokens(index.propose([1], 8)) == [2, 3]


def test_an_index_forgets_what_is_oldest_and_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "_MOST_CONTEXTS", 100)
    index, rng = Index(), random.Random(0)
    index.feed([], [1, 2, 3])
    index.feed([], [rng.randrange(10, 10**6) for _ in range(400)])
    assert len(index._next) <= 100
    assert index.propose([1], 1) == []


def test_a_text_that_repeats_itself_does_not_propose_without_end() -> None:
    index = Index()
    index.feed([], [1, 1, 1, 1, 1, 1])
    assert tokens(index.propose([1, 1], 5)) == [1] * 5


def test_chances_begin_as_measured_elsewhere_and_go_where_the_counts_are() -> None:
    acceptance = Acceptance()
    assert acceptance.chance((4, 3)) == pytest.approx(0.88)
    for _ in range(3):
        acceptance.count((4, 3), accepted=False)
    acceptance.count((4, 3), accepted=True)
    assert acceptance.chance((4, 3)) == pytest.approx((1 + 0.88 * 8) / (4 + 8))
    assert (acceptance.checked, acceptance.accepted) == (4, 1)
    assert acceptance.chance((1, 1)) == pytest.approx(0.10)


def test_the_cost_of_a_tick_is_linear_between_measured_sizes_and_beyond() -> None:
    costs = drafts._COSTS
    assert [tick_cost(size) for size in costs] == pytest.approx(list(costs.values()))
    assert tick_cost(24) == pytest.approx((costs[17] * 8 + costs[32] * 7) / 15)
    assert tick_cost(96) == pytest.approx(costs[64] + costs[64] - costs[32])
    assert all(tick_cost(size) < tick_cost(size + 1) for size in range(1, 400))


def test_guesses_are_worth_it_where_they_are_sure_and_ticks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    # A tick of one token costs 1, of 2 to 4 tokens 1.5, then 0.25 for each more.
    monkeypatch.setattr(drafts, "_COSTS", {1: 1.0, 2: 1.5, 4: 1.5001, 64: 16.5001})
    monkeypatch.setattr(drafts, "_STEPS", (1, 2, 4, 64))
    monkeypatch.setattr(drafts, "_WORTH", 1.0)
    # 1 token for 1; 2, 3, 4 tokens for 1.5 at certain guesses.
    assert worthwhile([[1.0, 1.0, 1.0]], 1) == [3]
    # 1 + 0.3 + 0.09 + 0.027 tokens for 1.5: less than 1 for 1.
    assert worthwhile([[0.3, 0.3, 0.3]], 1) == [0]
    # Two lanes, 2 tokens for 1.5. The surer lane gets both guesses that cost nothing more: 2 + 0.9 + 0.81.
    assert worthwhile([[0.5, 0.5], [0.9, 0.9]], 2) == [0, 2]
    assert worthwhile([[], [0.9]], 2) == [0, 1]
    assert worthwhile([], 5) == []


def test_a_tick_with_guesses_stays_within_its_limit() -> None:
    sure = [[1.0] * 100 for _ in range(2)]
    assert 0 < sum(worthwhile(sure, 2)) <= DRAFTED_TICK_TOKENS - 2
    assert worthwhile(sure, DRAFTED_TICK_TOKENS) == [0] * 2
    assert worthwhile(sure, 1000) == [0] * 2
