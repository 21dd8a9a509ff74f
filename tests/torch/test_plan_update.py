"""The planner's formulas for an update against the update itself on fake tensors."""

import json
from typing import Any

import pytest
from transformers import AutoConfig

from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.models.shape import read_shape
from palmette.planner.predict import largest_update
from palmette.planner.update_sizes import adapter_line, optimizer_line, update_lines
from palmette.train.fake_update import predict_update
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
    config = AutoConfig.for_model(family, **SMALL, tie_word_embeddings=tied)
    model = Model("small", read_shape("small", config.to_dict()), "float32")
    lines = [*adapter_line(model, update), optimizer_line(model, update), *update_lines(model, update, {})]
    planned = model.weight_bytes + sum(line.bytes for line in lines if line.kind != "runtime")
    predicted = predict_update(config, largest_update(update)).peak_bytes
    assert 0.99 * predicted <= planned <= 1.2 * predicted


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
        "--set", "train.response_tokens=64", "--set", "train.micro_batch_tokens=1024",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["devices"][0]["phases"][-1]["lines"]
    basis = {line["holder"]: line["basis"] for line in lines}
    assert (basis["gradients"], basis["activations"], basis["optimizer state"]) == ("predicted", "predicted", "formula")
    assert "logits" not in basis
