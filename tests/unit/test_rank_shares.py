"""Every sample is computed once by one rank, ranks make the same number of passes, and have about the same to do."""

import random

import pytest

from palmette.errors import BudgetError
from palmette.scale.learning.shares import passes_of
from palmette.train.samples import Sample, padded_tokens


def sample(length: int, group: int = 0) -> Sample:
    return Sample((1,), (2,) * length, (1.0,) * length, group)


def test_passes_hold_every_sample_once_within_the_limit() -> None:
    rng = random.Random(0)
    for _ in range(50):
        samples = [sample(rng.randint(1, 30), place // 4) for place in range(rng.randint(1, 20))]
        ranks = rng.randint(1, 6)
        passes = passes_of(samples, ranks=ranks, micro_batch_tokens=40)
        assert len(passes) == ranks and len({len(own) for own in passes}) == 1
        computed = [each for own in passes for one in own if not one.is_idle for each in one.samples]
        assert sorted(map(id, computed)) == sorted(map(id, samples))
        assert all(padded_tokens(one.samples) <= 40 for own in passes for one in own)
        assert all(one.samples[0].weight == 0 for own in passes for one in own if one.is_idle)


def test_ranks_have_as_much_to_do_as_the_longest_sample_allows() -> None:
    passes = passes_of([sample(n) for n in (8, 7, 6, 5, 4)], ranks=2, micro_batch_tokens=100)
    assert [sum(len(each.response) for one in own for each in one.samples) for own in passes] == [17, 13]
    assert [[len(each.response) for each in own[0].samples] for own in passes] == [[8, 5, 4], [7, 6]]


def test_a_sample_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match="a sample of 30 tokens does not fit a micro-batch of 20"):
        passes_of([sample(30)], ranks=2, micro_batch_tokens=20)
