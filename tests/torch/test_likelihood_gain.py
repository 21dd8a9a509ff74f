"""Two language models as a scorer: how much more the larger one expects a step."""

import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.memory.guard import GivesUpCache
from palmette.memory.oom import TellsCacheFull
from palmette.planner.run_plan import plan_run
from palmette.run.parts import check_names, load_scorer
from palmette.score.scorer import Candidate, KeepsPaths, PiecewiseScorer, ReadsPrompts
from palmette.score.scorers.likelihood import LikelihoodScorer
from palmette.score.scorers.likelihood_gain import LikelihoodGainScorer
from palmette.score.values import GAIN_SCALE, GRID
from tests.reward_models import newline_tokenizer, save, tiny
from tests.torch.conftest import tiny_config
from tests.torch.test_likelihood import ASKED, random_candidates, slow

GAIN = {"reward.model": "seedling-ripe", "reward.score": "likelihood_gain", "reward.small_model": "seedling"}


@pytest.fixture(scope="module")
def small(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(7)
    return LlamaForCausalLM(tiny_config(tokenizer)).eval()


def made(
    large: LlamaForCausalLM, small: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: int = 64
) -> LikelihoodGainScorer:
    return LikelihoodGainScorer(*(LikelihoodScorer(model, tokenizer, batch_rows=rows) for model in (large, small)))


def test_a_score_is_the_sigmoid_of_the_difference_of_mean_log_probabilities(
    policy: LlamaForCausalLM, small: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    candidates = random_candidates(0, 40)
    scores = made(policy, small, tokenizer).score(candidates)
    for score, candidate in zip(scores, candidates, strict=True):
        gain = math.log(slow(policy, tokenizer, candidate)) - math.log(slow(small, tokenizer, candidate))
        # Each of the two means is rounded to the grid.
        assert math.log(score / (1 - score)) == pytest.approx(GAIN_SCALE * gain, abs=GAIN_SCALE * (GRID + 2e-4))
    assert min(scores) < 0.4 < 0.6 < max(scores)
    assert made(small, policy, tokenizer, 3).score(candidates[::-1])[::-1] == pytest.approx(
        [1 - score for score in scores], abs=1e-9
    )


def test_it_keeps_the_contracts_of_a_scorer_inside_the_process(
    policy: LlamaForCausalLM, small: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    scorer: object = made(policy, small, tokenizer)
    assert isinstance(scorer, PiecewiseScorer) and isinstance(scorer, GivesUpCache)
    assert isinstance(scorer, KeepsPaths) and isinstance(scorer, ReadsPrompts) and isinstance(scorer, TellsCacheFull)
    assert isinstance(scorer, LikelihoodGainScorer) and scorer.cache_full is None
    with pytest.raises(ConfigError, match="a control token of the model"):
        scorer.check_prompt(({"role": "user", "content": "1<eos>"},))
    first = scorer.score([Candidate(ASKED, ("3+4=7\n",), False)])
    assert scorer.calls >= 2 and all(part.tree.cache.pool.taken_bytes for part in scorer._scorers)
    assert scorer.give_up_cache()
    assert scorer.score([Candidate(ASKED, ("3+4=7\n",), False)]) == first
    scorer.forget(ASKED)
    assert not any(part.tree.cache.pool.taken_bytes for part in scorer._scorers)
    assert scorer.score([Candidate(ASKED, ("1" * 600,), False)]) == [0.0]  # longer than the context


def test_two_models_of_the_zoo_are_compared_by_name() -> None:
    config = load_config(None, GAIN)
    check_names(config, clusters=False)
    scorer = load_scorer(config.reward)
    assert scorer is not None
    right, wrong = scorer.score(
        [Candidate(({"role": "user", "content": "7*3+2"},), (step,), False) for step in ("7*3=21\n", "7*3=27\n")]
    )
    assert 0 < wrong < right < 1


def test_models_with_different_tokenizers_are_refused(tmp_path: Path) -> None:
    tokenizer = newline_tokenizer()
    other = save(LlamaForCausalLM(tiny("LlamaConfig", tokenizer)), tokenizer, tmp_path / "other")
    with pytest.raises(ConfigError, match="has another tokenizer than seedling-ripe.*Take two models of one family"):
        load_scorer(load_config(None, {**GAIN, "reward.small_model": other}).reward)


def test_the_second_model_is_set_where_it_is_used_and_only_there() -> None:
    with pytest.raises(ConfigError, match="compares reward.model with a smaller one: set reward.small_model"):
        load_config(None, {**GAIN, "reward.small_model": None})
    with pytest.raises(ConfigError, match="reward.small_model is not used by reward.score 'likelihood'"):
        load_config(None, {**GAIN, "reward.score": "likelihood"})
    with pytest.raises(ConfigError, match="seedling-prm cannot|minilm cannot"):
        check_names(load_config(None, {**GAIN, "reward.small_model": "minilm"}), clusters=False)


def test_a_plan_counts_both_models() -> None:
    config = load_config(None, {**GAIN, "memory.devices": "cpu:24GiB", "reward.kv_budget": "32MiB"})
    phase = next(phase for phase in plan_run(config)[1].devices[0].phases if phase.name == "score")
    found = {line.holder: line.bytes for line in phase.lines}
    for kind in ("weights", "KV", "activations", "logits"):
        assert found[f"small reward {kind}"] == found[f"reward {kind}"] > 0
    with pytest.raises(ConfigError, match="not planned for servers"):
        plan_run(load_config(None, {**GAIN, "memory.devices": "1x24GiB"}))
