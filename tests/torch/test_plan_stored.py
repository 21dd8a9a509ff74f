"""Quantized checkpoints, reward heads and models without a formula, against transformers' own modules."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

from palmette.planner.models.find_shape import find_shape
from palmette.planner.models.on_meta import COUNTED, count_on_meta
from palmette.planner.models.shape import UnknownFamilyError, read_shape

SMALL: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 320, "moe_intermediate_size": 160, "num_experts": 4, "num_local_experts": 4, "head_dim": 32,
    "num_experts_per_tok": 2,
    "pad_token_id": 0, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 96, "kv_lora_rank": 160, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 48,
}  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
def test_an_fp8_checkpoint_takes_the_bytes_of_transformers_fp8_layers(family: str) -> None:
    config = AutoConfig.for_model(family, **SMALL)
    quantization = FineGrainedFP8Config(weight_block_size=(128, 128))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # A router is no linear layer in transformers, and its head stays as it is.
    model = replace_with_fp8_linear(model, ["lm_head"], quantization)
    held = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    shape = read_shape("small", {**config.to_dict(), "quantization_config": stored})
    assert shape.weight_bytes("bfloat16") == held


def test_mxfp4_experts_take_the_bytes_of_transformers_packed_experts() -> None:
    config = AutoConfig.for_model("gpt_oss", **{**SMALL, "intermediate_size": 192})
    stored = {"quant_method": "mxfp4"}
    plain, packed = (
        read_shape("small", {**config.to_dict(), "quantization_config": own}).weight_bytes("bfloat16")
        for own in (None, stored)
    )
    with torch.device("meta"):
        experts = Mxfp4GptOssExperts(config)
    blocks = sum(weight.numel() for name, weight in experts.named_parameters() if "bias" not in name)
    numbers = 2 * blocks  # Two numbers of four bits in each byte, and a byte of scale for 32 numbers.
    assert plain - packed == config.num_hidden_layers * (2 * numbers - blocks - numbers // 32)


def test_a_model_without_a_formula_is_counted_by_transformers_and_says_so() -> None:
    values = AutoConfig.for_model("diffllama", **{**SMALL, "num_key_value_heads": 2}).to_dict()
    with pytest.raises(UnknownFamilyError, match="its model_type is 'diffllama'"):
        read_shape("small", values)
    shape = count_on_meta("small", values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("diffllama", **SMALL))
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    assert shape.kv_bytes_per_token("bfloat16") == 4 * 2 * 2 * 32 * 2
    assert (shape.layers, shape.hidden, shape.intermediate, shape.counted) == (4, 192, 320, COUNTED)


def test_formulas_and_transformers_count_the_same() -> None:
    values = AutoConfig.for_model("qwen3_moe", **SMALL).to_dict()
    counted, declared = count_on_meta("small", values), read_shape("small", values)
    assert (counted.parameters, counted.intermediate) == (declared.parameters, declared.intermediate)
    assert counted.kv_bytes_per_token("bfloat16") == declared.kv_bytes_per_token("bfloat16")
    assert sum(own.parameters for own in counted.linear) - sum(own.parameters for own in declared.linear) == 4 * 4 * 192


def test_published_models_of_these_families_are_known() -> None:
    assert find_shape("openai/gpt-oss-20b").weight_bytes("bfloat16") == 13_761_264_768  # As its index file says.
