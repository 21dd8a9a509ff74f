"""Advantages against numbers worked out by hand; settings, weights and shaping of the algorithms."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from palmette import registry
from palmette.errors import ConfigError, PalmetteError
from palmette.train.algorithms.aggregation import sample_weights
from palmette.train.algorithms.algorithm import Algorithm, Outcome, make_algorithm
from palmette.train.algorithms.cispo import Cispo
from palmette.train.algorithms.dapo import Dapo, DapoSettings, overlong_penalty
from palmette.train.algorithms.dr_grpo import DrGrpo
from palmette.train.algorithms.gae import advantage_estimates, discounted_returns
from palmette.train.algorithms.grpo import Grpo, GrpoSettings
from palmette.train.algorithms.gspo import Gspo
from palmette.train.algorithms.maxrl import Maxrl
from palmette.train.algorithms.ppo import Ppo, PpoSettings
from palmette.train.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusSettings
from palmette.train.algorithms.rloo import Rloo
from palmette.train.algorithms.statistics import groups_with_signal, whitened
from tests.algorithms_page import listed, tables
from tests.pages import python_script

OF_GROUPS: list[type[Algorithm]] = [Grpo, DrGrpo, Rloo, Dapo, Gspo, Cispo, Maxrl]


def outcomes(*rewards: float) -> list[Outcome]:
    return [Outcome(reward, 1) for reward in rewards]


@pytest.mark.parametrize("kind", [Grpo, Dapo, Gspo, Cispo])
def test_a_z_score_within_the_group(kind: type[Algorithm]) -> None:
    # Rewards 1, 0, 0, 0: mean 1/4, squares 9/16 + 3/16 = 3/4, std = sqrt(3/4 / 3) = 1/2.
    # (1 - 1/4) / (1/2 + 1e-4) and -(1/4) / (1/2 + 1e-4).
    (found,) = kind().advantages([outcomes(1, 0, 0, 0)])
    assert found == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3], rel=1e-12)


def test_the_epsilon_is_a_setting() -> None:
    # Rewards 0, 2: std sqrt(2).
    (found,) = Grpo(GrpoSettings(std_epsilon=1.0)).advantages([outcomes(0, 2)])
    assert found == pytest.approx([-1 / (math.sqrt(2) + 1), 1 / (math.sqrt(2) + 1)], rel=1e-12)


def test_dr_grpo_only_centers() -> None:
    assert DrGrpo().advantages([outcomes(1, 0, 0, 0), outcomes(3, 1)]) == [[0.75, -0.25, -0.25, -0.25], [1.0, -1.0]]


def test_rloo_leaves_one_out() -> None:
    # 3 - mean(1, 2) = 1.5; 1 - mean(3, 2) = -1.5; 2 - mean(3, 1) = 0.
    (found,) = Rloo().advantages([outcomes(3, 1, 2)])
    assert found == pytest.approx([1.5, -1.5, 0.0], abs=1e-12)


def test_maxrl_divides_by_the_mean() -> None:
    # One of four right: mean 1/4; (1 - 1/4) / (1/4) = 3, -(1/4) / (1/4) = -1. Three of four: 1/3 and -1.
    found = Maxrl().advantages([outcomes(1, 0, 0, 0), outcomes(1, 1, 1, 0), outcomes(0, 0)])
    assert found[0] == [3.0, -1.0, -1.0, -1.0]
    assert found[1] == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0], rel=1e-12)
    assert found[2] == [0.0, 0.0]


def test_maxrl_refuses_rewards_whose_mean_could_turn_the_sign() -> None:
    with pytest.raises(PalmetteError, match="one is -1. Shift them, or choose grpo"):
        Maxrl().advantages([outcomes(-1, 0)])


@pytest.mark.parametrize("kind", OF_GROUPS)
@given(st.integers(0, 7), st.integers(1, 9))
def test_a_group_without_signal_gives_exactly_nothing(kind: type[Algorithm], tenths: int, count: int) -> None:
    assert kind().advantages([outcomes(*[tenths / 10] * count)]) == [[0.0] * count]


@pytest.mark.parametrize("kind", OF_GROUPS)
@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=8), min_size=1, max_size=4))
def test_advantages_of_a_group_cancel_and_rank_as_rewards_do(kind: type[Algorithm], groups: list[list[int]]) -> None:
    found = kind().advantages([outcomes(*group) for group in groups])
    for rewards, numbers in zip(groups, found, strict=True):
        assert math.isclose(sum(numbers), 0, abs_tol=1e-9)
        if len(set(rewards)) > 1:
            assert (numbers[rewards.index(max(rewards))] > 0) and (numbers[rewards.index(min(rewards))] < 0)


def test_penalties_are_taken_from_the_reward_of_a_response() -> None:
    # 1 - (0.1 + 0.3) = 0.6 against 0.
    (found,) = DrGrpo().advantages([[Outcome(1.0, 2, (0.1, 0.3)), Outcome(0.0, 2)]])
    assert found == pytest.approx([0.3, -0.3], rel=1e-12)


def test_every_token_of_a_response_has_its_advantage() -> None:
    ((first, second),) = DrGrpo().token_advantages([[Outcome(1.0, 2), Outcome(0.0, 1)]])
    assert (first.advantages, second.advantages, first.returns) == ((0.5, 0.5), (-0.5,), None)


def test_whitening_counts_tokens() -> None:
    # Values 1 for 3 tokens and 5 for 1: mean 2, squares 3 x 1 + 9 = 12, variance 12 / 3 = 4.
    assert whitened([1.0, 5.0], [3, 1]) == pytest.approx([-0.5, 1.5], rel=1e-8)
    assert whitened([0.3, 0.3], [3, 1]) == [0.0, 0.0]


def test_reinforce_plus_plus_whitens_returns_over_all_tokens() -> None:
    # Discount 1/2, penalties 1, 0, 0 and reward 4: token rewards -1, 0, 4; returns from the end 4, 0 + 4/2 = 2,
    # -1 + 2/2 = 0. The other response has one token with return 2. Tokens 0, 2, 4, 2: mean 2, variance 8/3.
    algorithm = ReinforcePlusPlus(ReinforcePlusPlusSettings(discount=0.5))
    ((first,), (second,)) = algorithm.token_advantages([[Outcome(4.0, 3, (1.0, 0.0, 0.0))], [Outcome(2.0, 1)]])
    scale = math.sqrt(8 / 3)
    assert first.advantages == pytest.approx((-2 / scale, 0.0, 2 / scale), abs=1e-8)
    assert second.advantages == pytest.approx((0.0,), abs=1e-8)


def test_reinforce_plus_plus_can_take_the_mean_of_the_group_first() -> None:
    # Groups (3, 1) and (0, 0): centered 1, -1, 0, 0, with 2, 1, 1, 1 tokens: mean 1/5, squares
    # 2 x 0.64 + 1.44 + 2 x 0.04 = 2.8, variance 0.7.
    algorithm = ReinforcePlusPlus(ReinforcePlusPlusSettings(group_baseline=True))
    found = algorithm.token_advantages([[Outcome(3, 2), Outcome(1, 1)], outcomes(0, 0)])
    scale = math.sqrt(0.7)
    assert found[0][0].advantages == pytest.approx((0.8 / scale,) * 2, rel=1e-7)
    assert found[0][1].advantages == pytest.approx((-1.2 / scale,), rel=1e-7)
    assert found[1][0].advantages == pytest.approx((-0.2 / scale,), rel=1e-7)


def test_returns_are_discounted_sums() -> None:
    assert discounted_returns([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]


def test_generalized_advantages_equal_a_hand_worked_case() -> None:
    # Rewards 0, 0, 1; values 0.5, 0.6, 0.8; discount 0.9, decay 0.5.
    # Surprises: 0.9 x 0.6 - 0.5 = 0.04; 0.9 x 0.8 - 0.6 = 0.12; 1 - 0.8 = 0.2.
    # From the end with 0.45: 0.2; 0.12 + 0.09 = 0.21; 0.04 + 0.0945 = 0.1345.
    advantages, returns = advantage_estimates([0, 0, 1], [0.5, 0.6, 0.8], discount=0.9, decay=0.5)
    assert advantages == pytest.approx([0.1345, 0.21, 0.2], rel=1e-12)
    assert returns == pytest.approx([0.6345, 0.81, 1.0], rel=1e-12)


def test_ppo_whitens_advantages_and_leaves_returns() -> None:
    # Discount and decay 1: advantages are reward - value: 1 - 0.5, 1 - 0.75 and 0 - 0.25; mean 1/6.
    ((first, second),) = Ppo().token_advantages([[Outcome(1.0, 2, (), (0.5, 0.75)), Outcome(0.0, 1, (), (0.25,))]])
    mean = 1 / 6
    scale = math.sqrt(((0.5 - mean) ** 2 + (0.25 - mean) ** 2 + (0.25 + mean) ** 2) / 2)
    assert first.advantages == pytest.approx(((0.5 - mean) / scale, (0.25 - mean) / scale), rel=1e-6)
    assert second.advantages == pytest.approx(((-0.25 - mean) / scale,), rel=1e-6)
    assert (first.returns, second.returns) == ((1.0, 1.0), (0.0,))


def test_ppo_says_what_it_lacks() -> None:
    with pytest.raises(PalmetteError, match="needs a critic's value for each token"):
        Ppo().token_advantages([outcomes(1, 0)])
    with pytest.raises(ConfigError, match="Ppo gives each token an advantage of its own"):
        Ppo().advantages([outcomes(1, 0)])
    with pytest.raises(PalmetteError, match="an outcome of 2 tokens has 1 values"):
        Outcome(1.0, 2, (), (0.5,))


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    # Limit 100, cache 20: free up to 80, then 1/20 for each token, 1 at 100 and beyond.
    [(1, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (130, -1.0)],
)
def test_long_answers_are_penalized_in_the_cache(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, 100, 20) == pytest.approx(penalty)
    assert Dapo().shaped_reward(1.0, tokens, 100) == pytest.approx(1 + penalty)
    assert Dapo(DapoSettings(overlong_share=0.0)).shaped_reward(1.0, tokens, 100) == 1.0
    assert Grpo().shaped_reward(1.0, tokens, 100) == 1.0


def test_dynamic_sampling_keeps_groups_whose_rewards_differ() -> None:
    assert groups_with_signal([[1, 1], [0, 1], [0.5, 0.5, 0.5], [0.5, 0.5, 0.4]]) == [1, 3]
    assert (Dapo().draws, Dapo(DapoSettings(dynamic_sampling=False)).draws, Grpo().draws) == (10, 1, 1)


def mean_loss(losses: Sequence[Sequence[float]], weights: Sequence[float]) -> float:
    """Return what the learner makes of weights: the weighted sum over all tokens of the update."""
    total = sum(len(tokens) for tokens in losses)
    return sum(weight * sum(tokens) for weight, tokens in zip(weights, losses, strict=True)) / total


@given(st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=6), min_size=1, max_size=6))
def test_weights_give_each_aggregation(losses: list[list[float]]) -> None:
    tokens = [len(sample) for sample in losses]
    by_token = sum(map(sum, losses)) / sum(tokens)
    by_sequence = sum(sum(sample) / len(sample) for sample in losses) / len(losses)
    by_constant = sum(map(sum, losses)) / (len(losses) * 7)
    assert math.isclose(mean_loss(losses, sample_weights(tokens, "token", 7)), by_token, abs_tol=1e-12)
    assert math.isclose(mean_loss(losses, sample_weights(tokens, "sequence", 7)), by_sequence, abs_tol=1e-12)
    assert math.isclose(mean_loss(losses, sample_weights(tokens, "constant", 7)), by_constant, abs_tol=1e-12)


def test_each_algorithm_is_found_by_its_name_with_the_settings_of_a_file() -> None:
    for name in registry.built_ins("algorithm"):
        made = make_algorithm(registry.find("algorithm", name), {"entropy_weight": 0.5})
        assert made.settings.entropy_weight == 0.5
        assert made.least_group == (1 if name in ("ppo", "reinforce_plus_plus") else 2)
        assert made.critic == (name == "ppo")
    assert DrGrpo().aggregation == "constant" and Gspo().aggregation == Rloo().aggregation == "sequence"
    assert Grpo().aggregation == Dapo().aggregation == Cispo().aggregation == "token"


def test_the_page_lists_every_setting_with_its_default_and_source() -> None:
    assert listed() == tables(), "python -m tests.algorithms_page writes the tables anew"


def test_the_example_of_the_page_runs() -> None:
    exec(compile(python_script("docs/algorithms.md"), "docs/algorithms.md", "exec"), {"__name__": "page"})


def test_wrong_settings_and_parts_are_refused() -> None:
    with pytest.raises(ValidationError, match="clip_hihg"):
        make_algorithm(Grpo, {"clip_hihg": 0.3})
    with pytest.raises(ConfigError, match="algorithm sum is no subclass"):
        make_algorithm(sum, {})
    given = Ppo(PpoSettings(discount=0.5))
    assert make_algorithm(given, {}) is given
