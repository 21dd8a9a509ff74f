import pytest
import torch

from palmette.engine.sampler import Sampling, draw, noise


def frequencies(logits: torch.Tensor, sampling: Sampling, count: int = 40_000) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    noise_RV = torch.empty(count, len(logits)).exponential_(generator=generator).log_().neg_()
    tokens = draw(logits.expand(count, -1), noise_RV, sampling).tokens_R
    return [float((tokens == token).float().mean()) for token in range(len(logits))]


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
    drawn = draw(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 1.0]]), None, Sampling(temperature=0))
    assert drawn.tokens_R.tolist()[0] == 1
    assert drawn.narrow_R.tolist() == [False, True]


def test_a_row_draws_the_same_noise_alone_and_beside_others() -> None:
    alone = noise([7], [4], 11)
    together = noise([3, 7, 9], [0, 4, 4], 11)
    assert together[1].tolist() == pytest.approx(alone[0].tolist(), rel=1e-5)
    assert not torch.allclose(noise([7], [5], 11), alone)
    assert not torch.allclose(noise([8], [4], 11), alone)


def test_noise_is_gumbel_and_independent_across_seeds_places_and_tokens() -> None:
    sample = torch.stack([noise(range(40), [place] * 40, 50) for place in range(40)])  # places, seeds, tokens
    assert float(sample.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(sample.var()) == pytest.approx(1.6449, abs=0.05)
    for threshold in (-1.0, 0.0, 1.0, 3.0):
        share = float((sample < threshold).float().mean())
        assert share == pytest.approx(float(torch.exp(-torch.exp(torch.tensor(-threshold)))), abs=0.01)
    for axis in range(3):
        one, other = sample.narrow(axis, 0, 39).flatten(), sample.narrow(axis, 1, 39).flatten()
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.02


def test_draws_too_close_to_call_are_marked() -> None:
    zero = torch.zeros(1, 3)
    assert draw(torch.tensor([[1.0, 1.0005, 0.0]]), zero, Sampling()).narrow_R.item()
    assert not draw(torch.tensor([[1.0, 1.1, 0.0]]), zero, Sampling()).narrow_R.item()


def test_a_winner_on_the_edge_of_the_cut_is_marked() -> None:
    # The third token wins by its noise when it is inside; whether it is depends on a hair of probability.
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    push = torch.tensor([[0.0, 0.0, 9.0]])
    edge = draw(logits, push, Sampling(top_p=0.8))
    inside = draw(logits, push, Sampling(top_p=0.9))
    assert edge.narrow_R.item()
    assert (inside.tokens_R.item(), inside.narrow_R.item()) == (2, False)
