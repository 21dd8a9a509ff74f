"""Samples are cut into micro-batches under a cap, groups whole where they fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.errors import BudgetError, PalmetteError
from palmette.train.samples import Sample, check_update, micro_batches, padded_tokens, shared_temperature


def sample(length: int, group: int) -> Sample:
    return Sample(prompt=(1,), response=(2,) * length, advantages=(1.0,) * length, group=group)


def check(*samples: Sample, with_reference: bool = False, temperature: float = 1.0) -> None:
    check_update(samples, with_reference=with_reference, vocabulary=50, temperature=temperature)


def lengths(batches: list[list[Sample]]) -> list[list[int]]:
    return [[len(sample.response) for sample in batch] for batch in batches]


def test_a_group_that_does_not_fit_beside_the_others_opens_a_micro_batch() -> None:
    samples = [sample(3, 0), sample(3, 0), sample(3, 1), sample(3, 1)]
    assert lengths(micro_batches(samples, 9)) == [[3, 3], [3, 3]]
    assert lengths(micro_batches(samples, 12)) == [[3, 3, 3, 3]]


def test_a_group_larger_than_the_cap_is_cut() -> None:
    assert lengths(micro_batches([sample(3, 0)] * 5, 7)) == [[3, 3], [3, 3], [3]]


def test_padding_counts() -> None:
    assert lengths(micro_batches([sample(1, 0), sample(5, 1)], 6)) == [[1], [5]]
    assert lengths(micro_batches([sample(1, 0), sample(5, 1)], 10)) == [[1, 5]]


def test_a_sample_over_the_cap_is_refused_with_the_cap_that_works() -> None:
    with pytest.raises(BudgetError, match=r"a sample of 9 tokens .* of 8: set micro_batch_tokens to 9 or more"):
        micro_batches([sample(9, 0)], 8)
    assert len(micro_batches([sample(9, 0)], 9)) == 1


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1), st.integers(9, 60))
def test_every_sample_comes_once_in_order_and_no_cap_is_passed(made: list[tuple[int, int]], cap: int) -> None:
    samples = [sample(length, group) for length, group in made]
    batches = micro_batches(samples, cap)
    assert [sample for batch in batches for sample in batch] == samples
    assert all(padded_tokens(batch) <= cap for batch in batches)


def test_samples_that_lack_numbers_are_refused() -> None:
    with pytest.raises(PalmetteError, match="old_logprobs has 1 numbers for 2 response tokens"):
        Sample((1,), (2, 3), (1.0, 1.0), old_logprobs=(0.0,))
    with pytest.raises(PalmetteError, match="advantages has 1 numbers for 2 response tokens"):
        Sample((1,), (2, 3), (1.0,))
    with pytest.raises(PalmetteError, match="mask has 3 numbers for 2 response tokens"):
        Sample((1,), (2, 3), (1.0, 1.0), mask=(True, False, True))
    with pytest.raises(PalmetteError, match="without prompt or response"):
        Sample((1,), (), ())
    with pytest.raises(PalmetteError, match="1 of 2 samples have old_logprobs"):
        check(sample(1, 0), Sample((1,), (2,), (1.0,), old_logprobs=(0.0,)))
    with pytest.raises(PalmetteError, match="the samples lack reference_logprobs"):
        check(sample(1, 0), with_reference=True)
    pair = sample(1, 0), Sample((1,), (2,), (1.0,), reference_logprobs=(0.0,))
    for with_reference in (False, True):
        with pytest.raises(PalmetteError, match="1 of 2 samples have reference_logprobs"):
            check(*pair, with_reference=with_reference)
    with pytest.raises(PalmetteError, match="one sample or more"):
        check()


def test_one_advantage_for_all_tokens_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(PalmetteError, match=r"advantages is 0.5, .* write \(0.5,\) \* len\(response\)"):
        Sample((1,), (2, 3), 0.5)  # type: ignore[arg-type]
    assert Sample((1,), (2, 3), (0.5,) * 2).advantages == (0.5, 0.5)


def test_a_mask_tells_which_tokens_count_and_has_to_leave_one() -> None:
    masked = Sample((1,), (2, 3, 4), (0.1, 0.2, 0.3), mask=(False, True, True))
    assert masked.counted(masked.response) == [3, 4] and masked.counted(masked.advantages) == [0.2, 0.3]
    assert (masked.counted_tokens, masked.fed_tokens) == (2, 3)
    assert sample(3, 0).counted_tokens == 3
    assert Sample((1,), (2, 3), (0.0, 0.0)).counted_tokens == 2  # An advantage of 0 masks nothing.
    with pytest.raises(PalmetteError, match="whose mask counts no token: leave it out"):
        Sample((1,), (2, 3), (1.0, 1.0), mask=(False, False))


def test_samples_at_another_temperature_than_the_learner_s_are_refused_with_what_to_set() -> None:
    cold = Sample((1,), (2,), (1.0,), old_logprobs=(-1.0,), temperature=0.7)
    check(cold, temperature=0.7)
    with pytest.raises(
        PalmetteError,
        match=r"sample 1 is at temperature 0.7, the learner at 1.0: give Learner temperature=0.7, "
        r"or sample with policy.temperature 1.0",
    ):
        check(Sample((1,), (2,), (1.0,), old_logprobs=(-1.0,)), cold)
    assert shared_temperature([cold, cold]) == 0.7
    with pytest.raises(PalmetteError, match=r"sample 1 is at temperature 1.0, sample 0 at 0.7: use separate calls"):
        shared_temperature([cold, sample(1, 0)])


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_log_probabilities_cannot_have_is_refused(temperature: float) -> None:
    with pytest.raises(PalmetteError, match="cannot be at temperature"):
        Sample((1,), (2,), (1.0,), temperature=temperature)


@pytest.mark.parametrize("token", [99, -1, 6.5])
def test_tokens_that_the_model_does_not_know_are_refused(token: int) -> None:
    with pytest.raises(PalmetteError, match=f"sample 1 holds the token {token}, the model has 0 to 49"):
        check(Sample((1,), (2,), (1.0,)), Sample((1,), (token,), (1.0,)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    for sample, named in (
        (Sample((1,), (2, 3), (1.0, bad)), "has advantages that are not finite"),
        (Sample((1,), (2,), (1.0,), old_logprobs=(bad,)), "has old_logprobs that are not finite"),
        (Sample((1,), (2,), (1.0,), reference_logprobs=(bad,)), "has reference_logprobs that are not finite"),
        (Sample((1,), (2,), (1.0,), old_values=(bad,)), "has old_values that are not finite"),
        (Sample((1,), (2,), (1.0,), returns=(bad,)), "has returns that are not finite"),
        (Sample((1,), (2,), (1.0,), weight=bad), "has a weight of .*: give a finite number"),
    ):
        with pytest.raises(PalmetteError, match=f"sample 0 {named}"):
            check(sample)
