import numpy as np
import pytest
import torch

from palmette.engine.cuts import Sampling, cut
from palmette.engine.sampler import NARROW_GAP, Draw, Streams, draw


def drawn(logits_RV: torch.Tensor, sampling: Sampling, first_seed: int = 0) -> Draw:
    rows = len(logits_RV)
    return draw(logits_RV, Streams(range(first_seed, first_seed + rows), [0] * rows), sampling)


def frequencies(logits: torch.Tensor, sampling: Sampling, count: int = 40_000) -> list[float]:
    # A thousand rows at a time stay in the processor's cache: five times as fast as all at once.
    rows_RV = logits.expand(1000, -1)
    tokens = torch.cat([drawn(rows_RV, sampling, first).tokens_R for first in range(0, count, 1000)])
    return torch.bincount(tokens, minlength=len(logits)).div(count).tolist()


def test_tokens_come_as_often_as_the_softmax_says() -> None:
    logits = torch.tensor([0.1, 0.4, 0.5]).log()
    assert frequencies(logits, Sampling()) == pytest.approx([0.1, 0.4, 0.5], abs=0.01)
    # At temperature 0.5 the weights are squared: 1, 16, 25 of 42.
    assert frequencies(logits, Sampling(temperature=0.5)) == pytest.approx([1 / 42, 16 / 42, 25 / 42], abs=0.01)


def test_top_k_and_top_p_cut_the_tail_and_keep_proportions() -> None:
    logits = torch.tensor([0.05, 0.15, 0.3, 0.5]).log()
    assert frequencies(logits, Sampling(top_k=2)) == pytest.approx([0, 0, 0.375, 0.625], abs=0.01)
    # 0.5 + 0.3 reaches 0.75, so the nucleus holds those two.
    assert frequencies(logits, Sampling(top_p=0.75)) == pytest.approx([0, 0, 0.375, 0.625], abs=0.01)
    assert frequencies(logits, Sampling(top_p=0.01)) == [0, 0, 0, 1]
    # After top-k 3 the weights are 15, 30, 50 of 95: 0.526 alone stays under 0.8, with 0.316 it passes it.
    assert frequencies(logits, Sampling(top_k=3, top_p=0.8)) == pytest.approx([0, 0, 0.375, 0.625], abs=0.01)


def test_a_cut_wider_than_the_vocabulary_cuts_nothing() -> None:
    logits = torch.tensor([0.2, 0.8]).log()
    assert frequencies(logits, Sampling(top_k=50)) == pytest.approx([0.2, 0.8], abs=0.01)


def test_without_noise_the_likeliest_token_is_taken() -> None:
    taken = drawn(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 1.0]]), Sampling(temperature=0))
    assert taken.tokens_R.tolist()[0] == 1
    assert taken.narrow_R.tolist() == [False, True]


def test_min_p_leaves_out_what_is_far_below_the_likeliest() -> None:
    logits = torch.tensor([0.05, 0.15, 0.3, 0.5]).log()
    # 0.2 * 0.5 = 0.1: the first is out, the others keep their proportions.
    assert frequencies(logits, Sampling(min_p=0.2)) == pytest.approx([0, 0.15 / 0.95, 0.3 / 0.95, 0.5 / 0.95], abs=0.01)
    assert frequencies(logits, Sampling(min_p=1.0)) == [0, 0, 0, 1]
    # At temperature 2 the weights are square roots: 0.05 has 0.316 of the likeliest's.
    assert frequencies(logits, Sampling(temperature=2, min_p=0.3))[0] > 0
    assert frequencies(logits, Sampling(temperature=2, min_p=0.33))[0] == 0


@pytest.mark.parametrize("vocabulary", [1300, 1536])
def test_a_vocabulary_drawn_in_two_races_comes_as_often_as_the_softmax_says(vocabulary: int) -> None:
    logits = torch.full((vocabulary,), -2.0)
    logits[[3, 600, 1100, vocabulary - 1]] = torch.tensor([5.0, 4.0, 5.0, 4.5])
    expected = logits.softmax(-1)
    found = torch.tensor(frequencies(logits, Sampling()))
    assert found[[3, 600, 1100, vocabulary - 1]].tolist() == pytest.approx(
        expected[[3, 600, 1100, vocabulary - 1]].tolist(), abs=0.01
    )
    # The other tokens together, by thirds of the vocabulary: a block must not win for one beside it.
    for third in range(3):
        part = slice(third * vocabulary // 3, (third + 1) * vocabulary // 3)
        assert float(found[part].sum()) == pytest.approx(float(expected[part].sum()), abs=0.01)
    small = frequencies(logits, Sampling(top_k=2, temperature=0.5), 10_000)
    assert [token for token, share in enumerate(small) if share] == [3, 1100]


@pytest.mark.parametrize(
    ("sampling", "temperature"),
    [
        (Sampling(), 1.0),
        (Sampling(0.7), 0.7),
        (Sampling(1.3), 1.3),
        (Sampling(top_k=5), 1.0),
        (Sampling(0.7, top_p=0.8), 0.7),
        (Sampling(1.3, min_p=0.1), 1.3),
        (Sampling(0), 1.0),
    ],
)
@pytest.mark.parametrize("vocabulary", [40, 1300])
def test_log_probabilities_are_those_of_the_uncut_softmax_at_the_sampling_temperature(
    sampling: Sampling, temperature: float, vocabulary: int
) -> None:
    logits_RV = torch.randn(50, vocabulary, generator=torch.Generator().manual_seed(1)) * 3
    found = drawn(logits_RV, sampling)
    assert sampling.logprob_temperature == temperature
    expected = (logits_RV / temperature).log_softmax(-1).gather(1, found.tokens_R[:, None])[:, 0]
    assert found.logprobs_R.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_log_probabilities_of_two_tokens_at_a_temperature_by_hand() -> None:
    # Chances 1 to 3; at temperature 0.5 their squares, 1 to 9.
    logits_RV = torch.tensor([[1.0, 3.0]]).log().expand(200, -1)
    found = drawn(logits_RV, Sampling(0.5))
    expected = [np.log([0.1, 0.9][token]) for token in found.tokens_R.tolist()]
    assert set(found.tokens_R.tolist()) == {0, 1}
    assert found.logprobs_R.tolist() == pytest.approx(expected, abs=1e-6)


def test_logits_that_are_not_finite_are_told_by_the_log_probability() -> None:
    for bad in (torch.nan, torch.inf):
        for sampling in (Sampling(), Sampling(0), Sampling(0.7), Sampling(top_p=0.5), Sampling(0.7, top_p=0.5)):
            for vocabulary in (7, 1300):
                logits_RV = torch.zeros(1, vocabulary)
                logits_RV[0, 5] = bad
                assert not drawn(logits_RV, sampling).logprobs_R.isfinite().all()


@pytest.mark.parametrize("vocabulary", [11, 3000])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(top_p=0.9), Sampling(top_p=0.3, top_k=7), Sampling(top_k=1), Sampling(top_p=0.999), Sampling(min_p=0.2)],
)
def test_cuts_equal_a_plain_reading_of_their_definitions(sampling: Sampling, vocabulary: int) -> None:
    for spread in (0.1, 3.0):  # A flat softmax needs more than the first candidates.
        logits_RV = torch.randn(20, vocabulary, generator=torch.Generator().manual_seed(2)) * spread
        _, floor_R, _ = cut(logits_RV, sampling, 1e-3)
        for row, floor in zip(logits_RV, floor_R, strict=True):
            order = row.sort(descending=True).values.double()[: sampling.top_k]
            shares = order.softmax(-1)
            count = 0
            while count < len(order) and (count == 0 or float(shares[:count].sum()) < sampling.top_p):
                count += 1
            least = float(order[0]) + np.log(sampling.min_p or 1e-9)
            assert int((row >= floor).sum()) == int((order[:count] >= least).sum())


def noise(seeds: list[int], places: list[int], count: int) -> torch.Tensor:
    return Streams(seeds, places).gumbel(np.arange(count))


def test_a_row_draws_the_same_noise_alone_and_beside_others() -> None:
    alone = noise([7], [4], 11)
    together = noise([3, 7, 9], [0, 4, 4], 11)
    assert together[1].tolist() == pytest.approx(alone[0].tolist(), rel=1e-5)
    assert not torch.allclose(noise([7], [5], 11), alone)
    assert not torch.allclose(noise([8], [4], 11), alone)


def test_noise_is_gumbel_and_independent_across_seeds_places_and_tokens() -> None:
    sample = torch.stack([noise(list(range(40)), [place] * 40, 50) for place in range(40)])  # places, seeds, tokens
    assert float(sample.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(sample.var()) == pytest.approx(1.6449, abs=0.05)
    for threshold in (-1.0, 0.0, 1.0, 3.0):
        share = float((sample < threshold).float().mean())
        assert share == pytest.approx(float(torch.exp(-torch.exp(torch.tensor(-threshold)))), abs=0.01)
    for axis in range(3):
        one, other = sample.narrow(axis, 0, 39).flatten(), sample.narrow(axis, 1, 39).flatten()
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.02


def test_draws_too_close_to_call_are_marked() -> None:
    zero = drawn(torch.zeros(40_000, 3), Sampling())
    perturbed = Streams(range(40_000), [0] * 40_000).gumbel(np.arange(3))
    best = perturbed.topk(2).values
    assert zero.narrow_R.tolist() == (best[:, 0] - best[:, 1] < NARROW_GAP).tolist()
    assert 3 < int(zero.narrow_R.sum()) < 100
    greedy = Sampling(temperature=0)
    assert drawn(torch.tensor([[1.0, 1.0003, 0.0]]), greedy).narrow_R.item()
    assert not drawn(torch.tensor([[1.0, 1.1, 0.0]]), greedy).narrow_R.item()


def test_a_race_between_blocks_too_close_to_call_is_marked() -> None:
    logits_RV = torch.zeros(20_000, 1024)
    gaps = Streams(range(20_000), [0] * 20_000).gumbel(1024 + np.arange(2)).topk(2).values
    close = gaps[:, 0] - gaps[:, 1] < NARROW_GAP * 0.9  # The blocks' masses are equal up to rounding.
    assert bool(drawn(logits_RV, Sampling()).narrow_R[close].all()) and int(close.sum()) > 2


def test_a_winner_on_the_edge_of_the_cut_is_marked() -> None:
    # Wherever the third token wins when it is inside, whether it is depends on a hair of probability.
    logits_RV = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(2000, -1)
    edge, inside = drawn(logits_RV, Sampling(top_p=0.8)), drawn(logits_RV, Sampling(top_p=0.9))
    wins = inside.tokens_R == 2
    assert int(wins.sum()) > 300
    assert bool(edge.narrow_R[wins].all())
    assert int(inside.narrow_R.sum()) < 20
    # The same with min-p: 0.4 * 0.5 is the third token's probability.
    edge, inside = drawn(logits_RV, Sampling(min_p=0.4)), drawn(logits_RV, Sampling(min_p=0.39))
    assert bool(edge.narrow_R[inside.tokens_R == 2].all())
    assert int(inside.narrow_R.sum()) < 20


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 3}])
def test_at_any_temperature_rounding_changes_marked_draws_only(temperature: float, cuts: dict[str, float]) -> None:
    # Logits as close as the temperature is low: else one token wins always, and nothing could be changed.
    torch.manual_seed(0)
    logits_RV = torch.randn(20_000, 12) * min(1.0, 4 * temperature)
    rounded_RV = logits_RV + (torch.rand_like(logits_RV) - 0.5) * 8e-5  # As measured; see NARROW_GAP.
    sampling = Sampling(temperature=temperature, **cuts)  # type: ignore[arg-type]
    found, other = drawn(logits_RV, sampling), drawn(rounded_RV, sampling)
    changed_R = found.tokens_R != other.tokens_R
    assert bool(found.narrow_R[changed_R].all())
    assert int(changed_R.sum()) > 0 or temperature > 0.01
