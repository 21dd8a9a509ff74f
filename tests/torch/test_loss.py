"""Token losses against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch

from palmette.train.divergence import Estimator, penalties
from palmette.train.update.loss import LossSettings, PolicyLosses, divergences, token_losses, value_losses
from palmette.train.update.token_batch import TokenBatch


def token(
    logprob: float | torch.Tensor, advantage: float, old: float | None = None, reference: float | None = None
) -> TokenBatch:
    """Return a batch of one token with an entropy of 1.5."""
    return TokenBatch(
        logprob if isinstance(logprob, torch.Tensor) else torch.tensor([logprob]),
        torch.tensor([1.5]),
        torch.tensor([advantage]),
        None if old is None else torch.tensor([old]),
        None if reference is None else torch.tensor([reference]),
        torch.tensor([0]),
    )


def one(
    logprob: float, advantage: float, old: float | None, reference: float | None = None, **settings: float
) -> float:
    losses = token_losses(token(logprob, advantage, old, reference), LossSettings(**settings))  # type: ignore[arg-type]
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
    losses = token_losses(token(logprobs, advantage, 0.0), LossSettings())
    (found,) = torch.autograd.grad(losses.loss_T.sum(), logprobs)
    assert math.isclose(float(found), slope, rel_tol=1e-6)
    assert bool(losses.clipped_T) == (slope == 0)


def test_divergence_is_measured_even_where_it_costs_nothing() -> None:
    losses = token_losses(token(-2.0, 0.0, None, -1.0), LossSettings())
    assert math.isclose(float(losses.kl_T), math.e - 2, rel_tol=1e-6)
    assert float(losses.loss_T) == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (5.0, -1.0, 3.0),  # Without the dual clip 5.
        (2.0, -1.0, 2.0),  # Below it.
        (5.0, 1.0, -1.2),  # A positive advantage has the usual clip alone.
        (0.5, -1.0, 0.8),
    ],
)
def test_the_dual_clip_bounds_what_a_negative_advantage_costs(ratio: float, advantage: float, loss: float) -> None:
    assert math.isclose(one(math.log(ratio), advantage, 0.0, dual_clip=3.0), loss, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    # d = reference - logprob = 1: k1 = -1, k2 = 1/2, k3 = e - 2; their slopes in logprob are 1, -1 and 1 - e.
    [("k1", -1.0, 1.0), ("k2", 0.5, -1.0), ("k3", math.e - 2, 1 - math.e)],
)
def test_divergence_has_three_estimators(estimator: Estimator, value: float, slope: float) -> None:
    logprobs = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    found = divergences(logprobs, torch.tensor([-1.0], dtype=torch.float64), estimator)
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert math.isclose(float(found.detach()), value, rel_tol=1e-12)
    assert math.isclose(float(gradient), slope, rel_tol=1e-12)
    assert penalties([-2.0], [-1.0], 0.5, estimator) == pytest.approx((0.5 * value,), rel=1e-12)


def test_a_policy_term_of_an_algorithm_replaces_the_clip_and_keeps_the_other_terms() -> None:
    def twice(tokens: TokenBatch) -> PolicyLosses:
        return PolicyLosses(2 * tokens.logprobs_T, torch.ones(1), torch.zeros(1, dtype=torch.bool))

    settings = LossSettings(kl_weight=0.5, entropy_weight=0.1)
    losses = token_losses(token(-2.0, 7.0, -2.0, -1.0), settings, twice)
    assert math.isclose(float(losses.loss_T), -4 + 0.5 * (math.e - 2) - 0.15, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss"),
    [
        (2.0, 1.0, 3.0, None, 0.5),  # (2 - 3)^2 / 2.
        (2.0, 1.0, 3.0, 0.5, 1.125),  # Bounded to 1.5: (1.5 - 3)^2 / 2.
        (2.0, 1.0, 0.0, 0.5, 2.0),  # Bounded to 1.5 it would be 1.125: the larger one counts.
        (1.2, 1.0, 3.0, 0.5, 1.62),  # Within the bounds.
    ],
)
def test_a_value_gains_nothing_beyond_its_clip(
    value: float, old: float, target: float, clip: float | None, loss: float
) -> None:
    found = value_losses(torch.tensor([value]), torch.tensor([old]), torch.tensor([target]), clip)
    assert math.isclose(float(found), loss, rel_tol=1e-6)


def test_the_value_term_is_added_where_the_batch_has_values() -> None:
    batch = replace(token(-1.0, 2.0), values_T=torch.tensor([2.0]), returns_T=torch.tensor([3.0]))
    assert float(token_losses(batch, LossSettings(value_weight=0.1)).loss_T) == pytest.approx(-2 + 0.1 * 0.5)
    assert float(token_losses(batch, LossSettings()).loss_T) == -2
