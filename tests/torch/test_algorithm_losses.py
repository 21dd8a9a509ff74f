"""The policy terms of the algorithms against numbers worked out by hand."""

import math

import pytest
import torch

from palmette.train.algorithms.algorithm import Algorithm
from palmette.train.algorithms.cispo import Cispo
from palmette.train.algorithms.dapo import Dapo
from palmette.train.algorithms.grpo import Grpo, GrpoSettings
from palmette.train.algorithms.gspo import Gspo, GspoSettings
from palmette.train.algorithms.ppo import Ppo
from palmette.train.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from palmette.train.algorithms.rloo import Rloo
from palmette.train.update.loss import PolicyLosses
from palmette.train.update.token_batch import TokenBatch
from palmette.train.update.value_head import ValueHead


def batch(logratios: list[float], advantages: list[float], sequence: list[int], *, has_old: bool = True) -> TokenBatch:
    """Return tokens whose old log-probabilities are -1."""
    logprobs_T = (torch.tensor(logratios, dtype=torch.float64) - 1).requires_grad_()
    old_T = torch.full_like(logprobs_T, -1.0).detach() if has_old else None
    advantages_T = torch.tensor(advantages, dtype=torch.float64)
    return TokenBatch(logprobs_T, torch.zeros_like(logprobs_T), advantages_T, old_T, None, torch.tensor(sequence))


def slopes(losses: PolicyLosses, tokens: TokenBatch) -> list[float]:
    """Return the gradient of the sum of the losses in each log-probability."""
    return torch.autograd.grad(losses.loss_T.sum(), tokens.logprobs_T)[0].tolist()


LOG = math.log


@pytest.mark.parametrize("kind", [Grpo, Dapo, Ppo, ReinforcePlusPlus])
def test_ratios_are_clipped_by_the_token(kind: type[Algorithm]) -> None:
    tokens = batch([LOG(1.5), LOG(1.5), LOG(0.5)], [1.0, -1.0, -1.0], [0, 1, 1])
    losses = kind().token_losses(tokens)
    high = 1.28 if kind is Dapo else 1.2
    assert losses.loss_T.tolist() == pytest.approx([-high, 1.5, 0.8])
    assert losses.ratio_T.tolist() == pytest.approx([1.5, 1.5, 0.5])
    assert losses.clipped_T.tolist() == [True, False, True]
    assert slopes(losses, tokens) == pytest.approx([0.0, 1.5, 0.0])


def test_the_clip_is_a_setting() -> None:
    tokens = batch([LOG(1.5), LOG(9.0)], [1.0, -1.0], [0, 1])
    losses = Grpo(GrpoSettings(clip_high=0.1, dual_clip=3.0)).token_losses(tokens)
    assert losses.loss_T.tolist() == pytest.approx([-1.1, 3.0])


def test_gspo_has_one_ratio_for_a_response_and_a_gradient_for_each_token() -> None:
    # The first response: log-ratios 0.1 and 0.3, mean 0.2, s = exp(0.2). The second: one token, -0.1.
    tokens = batch([0.1, 0.3, -0.1], [1.0, 1.0, 2.0], [0, 0, 1])
    wide = Gspo(GspoSettings(clip_low=0.5, clip_high=0.5)).token_losses(tokens)
    first, second = math.exp(0.2), math.exp(-0.1)
    assert wide.loss_T.tolist() == pytest.approx([-first, -first, -2 * second])
    # By the mean over a response's tokens the gradient of s A is s A / 2 for each token of two.
    assert slopes(wide, tokens) == pytest.approx([-first, -first, -2 * second])
    assert wide.ratio_T.tolist() == pytest.approx([math.exp(0.1), math.exp(0.3), math.exp(-0.1)])
    narrow = Gspo().token_losses(tokens)  # 1 + 4e-4 for the first; the second, below 1, is not clipped upward.
    assert narrow.loss_T.tolist() == pytest.approx([-1.0004, -1.0004, -2 * second])
    assert narrow.clipped_T.tolist() == [True, True, False]


def test_rloo_takes_a_response_as_one_action() -> None:
    # The ratio of the first response is exp(0.05 + 0.05), of the second exp(-0.4).
    tokens = batch([0.05, 0.05, -0.4], [1.0, 1.0, -2.0], [0, 0, 1])
    losses = Rloo().token_losses(tokens)
    first = math.exp(0.1)
    assert losses.loss_T.tolist() == pytest.approx([-first, -first, 2 * 0.8])
    # The mean over two tokens is the loss of the response; each of its log-probabilities has the slope s A.
    assert [slope / 2 for slope in slopes(losses, tokens)[:2]] == pytest.approx([-first, -first])


def test_cispo_weighs_every_token_and_clips_no_gradient() -> None:
    tokens = batch([LOG(8.0), LOG(8.0), LOG(0.5)], [1.0, -1.0, 2.0], [0, 1, 1])
    losses = Cispo().token_losses(tokens)
    # -min(ratio, 5) x A x logprob with logprob = log(ratio) - 1.
    expected = [-5 * (LOG(8) - 1), 5 * (LOG(8) - 1), -0.5 * 2 * (LOG(0.5) - 1)]
    assert losses.loss_T.tolist() == pytest.approx(expected)
    assert slopes(losses, tokens) == pytest.approx([-5.0, 5.0, -1.0])
    assert losses.clipped_T.tolist() == [True, True, False]


@pytest.mark.parametrize("kind", [Grpo, Dapo, Gspo, Cispo])
def test_without_old_log_probabilities_every_ratio_is_1(kind: type[Algorithm]) -> None:
    tokens = batch([0.3, -0.2, 0.1], [1.0, 1.0, -2.0], [0, 0, 1], has_old=False)
    losses = kind().token_losses(tokens)
    assert losses.ratio_T.tolist() == [1.0, 1.0, 1.0]
    assert not losses.clipped_T.any()
    assert slopes(losses, tokens) == pytest.approx([-1.0, -1.0, 2.0])


def test_what_algorithms_share_is_told_to_the_loss() -> None:
    assert (Ppo().loss().value_weight, Ppo().loss().value_clip, Grpo().loss().value_weight) == (1.0, 0.5, 0.0)
    assert Rloo().loss().kl_weight == 0  # It is part of the reward.
    assert Grpo(GrpoSettings(kl_weight=0.1, kl="k2")).loss().kl_weight == 0.1


def test_a_value_head_begins_with_nothing_and_learns() -> None:
    head = ValueHead(3, dtype=torch.bfloat16)
    hidden_TD = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], dtype=torch.bfloat16)
    assert head(hidden_TD).tolist() == [0.0, 0.0] and head(hidden_TD).dtype == torch.float32
    head(hidden_TD).sum().backward()
    gradient = head.linear.weight.grad
    assert gradient is not None and gradient.tolist() == [[1.0, 3.0, 3.0]]
