"""The planner's formulas for an update against the update itself on fake tensors."""

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.models.shape import read_shape
from palmette.planner.predict import largest_update
from palmette.planner.update_sizes import adapter_line, optimizer_line, update_lines
from palmette.settings import LORA_TARGETS
from palmette.train.model_parts import train_lora
from palmette.train.update.fake_update import predict_update
from tests.command import palmette

SMALL: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 176, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip


def needs(**values: Any) -> UpdateNeeds:
    own: dict[str, Any] = {
        "method": "full", "lora_rank": 4, "lora_targets": ("q_proj", "down_proj"), "optimizer_dtype": "float32",
        "questions": 4, "group_size": 4, "prompt_tokens": 8, "response_tokens": 121, "micro_batch_tokens": 1024,
        "checkpointing": False, "reference": "none",
    }  # fmt: skip
    return UpdateNeeds(**{**own, **values})


@pytest.mark.parametrize(
    ("family", "tied", "update"),
    [
        ("llama", True, needs()),
        ("llama", False, needs(checkpointing=True)),
        ("llama", True, needs(method="lora")),
        ("llama", True, needs(method="lora", checkpointing=True)),
        ("qwen2", True, needs(micro_batch_tokens=200)),
        ("qwen3", False, needs()),
        ("qwen3", True, needs(method="lora", lora_targets=("q_proj", "v_proj"))),
        ("gemma2", True, needs(checkpointing=True)),
        ("gemma3_text", True, needs()),
        ("mistral", False, needs()),
    ],
)
def test_formulas_are_not_below_the_update_on_fake_tensors_nor_far_above(
    family: str, tied: bool, update: UpdateNeeds
) -> None:
    assert 1.0 <= planned_by_predicted(family, tied, update, "float32", SMALL) <= 1.15


LARGER: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 2, "vocab_size": 16_000, "hidden_size": 512, "intermediate_size": 1408,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024,
}  # fmt: skip
LONG = {"prompt_tokens": 64, "response_tokens": 449, "micro_batch_tokens": 2048}
METHODS: list[dict[str, Any]] = [
    {"method": "full"},
    {"method": "lora"},
    {"method": "lora", "lora_targets": LORA_TARGETS, "lora_rank": 16},
    {"method": "lora", "lora_targets": ("gate_proj", "up_proj")},
]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_updates_in_bfloat16_are_planned_with_the_float32_copies_that_norms_and_peft_make(
    family: str, checkpointing: bool
) -> None:
    for method in METHODS:
        update = needs(**method, checkpointing=checkpointing)
        sizes = {**SMALL, "num_hidden_layers": 2}
        found = planned_by_predicted(family, family != "qwen2", update, "bfloat16", sizes)
        assert 1.0 <= found <= 1.15, (method, found)


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(("family", "checkpointing"), [("llama", False), ("gemma3_text", True)])
def test_updates_of_larger_models_in_bfloat16_are_planned_as_closely(
    family: str, checkpointing: bool, method: str
) -> None:
    """Here the logits of a second chunk are computed while the gradient of the first is held."""
    update = needs(method=method, lora_targets=LORA_TARGETS, lora_rank=16, checkpointing=checkpointing, **LONG)
    assert 1.0 <= planned_by_predicted(family, True, update, "bfloat16", LARGER) <= 1.15


def planned_by_predicted(family: str, tied: bool, update: UpdateNeeds, dtype: str, sizes: dict[str, Any]) -> float:
    """Return the planned bytes of an update by those of the update itself on fake tensors."""
    config = AutoConfig.for_model(family, **sizes, tie_word_embeddings=tied)
    model = Model("small", read_shape("small", config.to_dict()), dtype)
    lines = [*adapter_line(model, update), optimizer_line(model, update), *update_lines(model, update, {})]
    planned = model.weight_bytes + sum(line.bytes for line in lines if line.kind != "runtime")
    return planned / predict_update(config, largest_update(update), dtype=dtype).peak_bytes


def test_lora_on_all_layers_counts_fused_ones_as_peft_adapts_them() -> None:
    config = AutoConfig.for_model("phi3", **{key: value for key, value in SMALL.items() if key != "head_dim"})
    shape = read_shape("small", config.to_dict())
    with torch.device("meta"):
        model = train_lora(AutoModelForCausalLM.from_config(config), rank=4)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert shape.lora_parameters(4) == trained


def test_the_largest_micro_batch_has_as_many_tokens_as_any_can_have() -> None:
    shape = largest_update(needs(micro_batch_tokens=1024))  # A sample is 128 tokens long: 8 of them.
    assert (shape.rows, shape.micro_batch_tokens, shape.response_tokens) == (8, 1024, 121)
    shape = largest_update(needs(micro_batch_tokens=1000))  # 7 samples of 128 make 896; 7 of 143 make 1,001.
    assert (shape.rows, shape.micro_batch_tokens, shape.response_tokens) == (7, 1001, 136)
    shape = largest_update(needs(micro_batch_tokens=10**6))
    assert (shape.rows, shape.micro_batch_tokens, shape.micro_batches) == (16, 16 * 128, 1)
    shape = largest_update(needs(micro_batch_tokens=1))  # A sample is never cut.
    assert (shape.rows, shape.micro_batch_tokens) == (1, 128)


def test_the_command_marks_what_was_predicted() -> None:
    done = palmette(
        "plan", "--devices", "cpu:24GiB", "--train", "--predict", "--json",
        "--set", "search.total_tokens=64", "--set", "train.micro_batch_tokens=1024",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["devices"][0]["phases"][-1]["lines"]
    basis = {line["holder"]: line["basis"] for line in lines}
    assert (basis["gradients"], basis["activations"], basis["optimizer state"]) == ("predicted", "predicted", "formula")
    assert "logits" not in basis
