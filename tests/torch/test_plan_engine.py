"""The planner's parameter counts and pool sizes against real models and pools."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification, LlamaForCausalLM

from palmette.engine.kv_pool import KvPool, KvShape
from palmette.engine.limits import SCORED_LOGITS, pool_tokens, scored_tokens
from palmette.planner.models.shape import read_shape
from palmette.score.scorer import Candidate
from palmette.score.scorers import likelihood
from palmette.score.scorers.likelihood import LikelihoodScorer

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    *((family, {"tie_word_embeddings": tied}) for family in ("llama", "mistral", "qwen2") for tied in (True, False)),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 20}),
    ("qwen3", {"head_dim": 24, "tie_word_embeddings": False}),
    ("qwen3", {"head_dim": 24, "attention_bias": True}),
    ("gemma", {"head_dim": 16}),
    ("gemma2", {"head_dim": 16}),
    ("gemma3_text", {"head_dim": 16}),
    ("phi3", {"tie_word_embeddings": False}),
]
BUILDERS = {
    "CausalLM": AutoModelForCausalLM,
    "TokenClassification": AutoModelForTokenClassification,
    "Model": AutoModel,
}


def counted(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def sized(config: Any, head: str) -> int:
    values = {**config.to_dict(), "architectures": [head if head == "Model" else f"For{head}"]}
    return read_shape("small", values).parameters


WITH_HEADS = [
    (family, settings, head)
    for family, settings in CONFIGS
    for head in BUILDERS
    if (family, head) != ("gemma3_text", "TokenClassification")  # transformers has no such class.
]


@pytest.mark.parametrize(("family", "settings", "head"), WITH_HEADS)
def test_a_decoder_has_as_many_parameters_as_its_shape_says(family: str, settings: dict[str, Any], head: str) -> None:
    config = AutoConfig.for_model(family, **{**SMALL, "num_labels": 1, **settings})
    with torch.device("meta"):
        model = BUILDERS[head].from_config(config)
    assert sized(config, head) == counted(model)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "mpnet"])
def test_an_encoder_has_as_many_parameters_as_its_shape_says(family: str) -> None:
    small = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    config = AutoConfig.for_model(family, **small)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert sized(config, "Model") == counted(model)


def test_a_pool_without_a_budget_grows_to_the_planned_size() -> None:
    shape = KvShape(2, 2, 2048, torch.float32, torch.device("cpu"))
    pool = KvPool(shape)
    for needed in (1, 1024, 1025, 3000):
        pool.take(needed - (pool.blocks - pool.free_blocks))
        assert pool.blocks == pool_tokens(needed, shape.token_bytes)


def test_a_scorer_reads_no_more_logits_at_once_than_planned() -> None:
    assert scored_tokens(49_152) * 49_152 <= SCORED_LOGITS < (scored_tokens(49_152) + 1) * 49_152
    assert scored_tokens(21) == 2048


def test_scores_do_not_depend_on_how_many_tokens_are_read_together(
    policy: LlamaForCausalLM, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, prompt: Callable[[str], tuple[int, ...]]
) -> None:
    messages = ({"role": "user", "content": "1+2*(3-4)"},)
    candidates = [
        Candidate(messages, steps, finished)
        for steps, finished in ((("1+2*-1\n",), False), (("1+2*-1\n", "1-2\n"), False), (("7\n", "9\n"), True))
    ]
    whole = LikelihoodScorer(policy, tokenizer, batch_rows=8).score(candidates)
    monkeypatch.setattr(likelihood, "scored_tokens", lambda vocabulary: 2)
    assert LikelihoodScorer(policy, tokenizer, batch_rows=8).score(candidates) == whole
