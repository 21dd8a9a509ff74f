"""Token losses against numbers worked out by hand."""

import math

import pytest
import torch

from palmette.train.loss import LossSettings, token_losses

ZERO = torch.zeros(1)


def one(
    logprob: float, advantage: float, old: float | None, reference: float | None = None, **settings: float
) -> float:
    losses = token_losses(
        torch.tensor([logprob]),
        torch.tensor([1.5]),
        torch.tensor([advantage]),
        None if old is None else torch.tensor([old]),
        None if reference is None else torch.tensor([reference]),
        LossSettings(**settings),
    )
    return float(losses.loss_T)


def test_a_policy_as_it_was_loses_its_advantage() -> None:
    assert one(-1.0, 2.0, -1.0) == -2.0
    assert one(-1.0, 2.0, None) == -2.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.5, 1.0, -1.2),  # Too far up for a good token: clipped at 1.2.
        (1.5, -1.0, 1.5),  # Too far up for a bad one: all of it.
        (0.5, 1.0, -0.5),  # Down for a good one: all of it.
        (0.5, -1.0, 0.8),  # Too far down for a bad one: clipped at 0.8.
        (1.1, 3.0, -3.3),
    ],
)
def test_the_clip_holds_where_the_policy_has_gone_far_enough(ratio: float, advantage: float, loss: float) -> None:
    assert math.isclose(one(math.log(ratio), advantage, 0.0), loss, rel_tol=1e-6)


def test_each_side_has_a_clip_of_its_own() -> None:
    assert math.isclose(one(math.log(1.5), 1.0, 0.0, clip_high=0.28), -1.28, rel_tol=1e-6)
    assert math.isclose(one(math.log(0.5), -1.0, 0.0, clip_low=0.4), 0.6, rel_tol=1e-6)


def test_divergence_is_exp_d_minus_d_minus_1() -> None:
    assert math.isclose(one(-2.0, 0.0, -2.0, -1.0, kl_weight=0.5), 0.5 * (math.e - 2), rel_tol=1e-6)
    assert one(-2.0, 0.0, -2.0, -2.0, kl_weight=0.5) == 0


def test_entropy_is_rewarded() -> None:
    assert math.isclose(one(-2.0, 0.0, -2.0, entropy_weight=0.1), -0.15, rel_tol=1e-6)


@pytest.mark.parametrize(("ratio", "advantage", "slope"), [(1.0, 2.0, -2.0), (1.5, 1.0, 0.0), (1.5, -1.0, 1.5)])
def test_a_clipped_token_has_no_gradient_and_any_other_ratio_times_advantage(
    ratio: float, advantage: float, slope: float
) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    losses = token_losses(logprobs, ZERO, torch.tensor([advantage]), ZERO, None, LossSettings())
    (found,) = torch.autograd.grad(losses.loss_T.sum(), logprobs)
    assert math.isclose(float(found), slope, rel_tol=1e-6)
    assert bool(losses.clipped_T) == (slope == 0)


def test_divergence_is_measured_even_where_it_costs_nothing() -> None:
    losses = token_losses(torch.tensor([-2.0]), ZERO, ZERO, None, torch.tensor([-1.0]), LossSettings())
    assert math.isclose(float(losses.kl_T), math.e - 2, rel_tol=1e-6)
    assert float(losses.loss_T) == 0
