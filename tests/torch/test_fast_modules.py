"""Faster code of known modules against their own, and which modules get it."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from palmette.engine.fast_modules import in_use, swaps
from palmette.engine.tree_model import TreeModel

TINY: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32,
}  # fmt: skip


def norm(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    made = LlamaRMSNorm(48, eps=1e-5)
    torch.nn.init.normal_(made.weight)
    return made.to(dtype)


def fast(module: Any, *inputs: torch.Tensor) -> torch.Tensor:
    with in_use(swaps(module)):
        assert "forward" in module.__dict__
        found: torch.Tensor = module(*inputs)
    return found


@pytest.mark.parametrize("shape", [(1, 48), (1, 5, 48), (2, 3, 4, 48), (0, 48)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
@torch.inference_mode()
def test_a_norm_gives_what_it_gives_by_itself(shape: tuple[int, ...], size: float) -> None:
    made, values = norm(), torch.randn(*shape) * size
    torch.testing.assert_close(fast(made, values), made(values), rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_a_norm_of_zeros_is_zero() -> None:
    assert not fast(norm(), torch.zeros(2, 48)).any()


def test_other_dtypes_and_gradients_are_computed_by_the_norm_s_own_code() -> None:
    rounded, values = norm(torch.bfloat16), torch.randn(3, 48)
    with torch.inference_mode():
        assert torch.equal(fast(rounded, values.bfloat16()), rounded(values.bfloat16()))
    made = norm()
    assert torch.equal(fast(made, values), made(values)) and fast(made, values).requires_grad


FAMILIES: list[tuple[type[PreTrainedModel], Any, dict[str, int]]] = [
    (LlamaForCausalLM, LlamaConfig, {"Linear": 8, "LlamaDecoderLayer": 1, "LlamaRMSNorm": 3}),
    (Qwen2ForCausalLM, Qwen2Config, {"Linear": 8, "Qwen2DecoderLayer": 1, "Qwen2RMSNorm": 3}),
    (Qwen3ForCausalLM, Qwen3Config, {"Linear": 8, "Qwen3RMSNorm": 5}),  # It normalizes queries and keys.
    (Gemma2ForCausalLM, Gemma2Config, {"Linear": 8}),  # Its norms add one to their weights.
]


@pytest.mark.parametrize(("family", "config", "known"), FAMILIES, ids=lambda value: getattr(value, "__name__", ""))
def test_modules_are_known_by_their_code_and_a_pass_gives_what_the_model_gives_by_itself(
    family: type[PreTrainedModel], config: Any, known: dict[str, int]
) -> None:
    torch.manual_seed(0)
    model: Any = family(config(**TINY)).eval()
    names = [type(module).__name__ for module, _ in swaps(model)]
    assert {name: names.count(name) for name in sorted(set(names))} == known
    TreeModel(model).check()
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("change", ["activation", "dtype", "hook", "subclass"])
def test_a_layer_with_anything_unknown_inside_runs_its_own_code(change: str) -> None:
    model: Any = LlamaForCausalLM(LlamaConfig(**TINY, hidden_act="gelu" if change == "activation" else "silu"))
    if change == "dtype":
        model.bfloat16()
    elif change == "hook":
        model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: None)
    elif change == "subclass":
        model.model.layers[0].mlp.up_proj.__class__ = type("Own", (torch.nn.Linear,), {})
    assert not any(type(module).__name__ == "LlamaDecoderLayer" for module, _ in swaps(model))


def test_modules_with_code_of_their_own_are_left_alone_and_an_error_restores_all() -> None:
    class Own(torch.nn.Linear):
        pass

    changed = torch.nn.Linear(2, 2)
    changed.forward = lambda values: values  # type: ignore[method-assign, assignment]
    plain = torch.nn.Linear(2, 2)
    found = swaps(torch.nn.Sequential(Own(2, 2), changed, plain, torch.nn.ReLU()))
    assert [module for module, _ in found] == [plain]
    with in_use(found), pytest.raises(RuntimeError):
        plain(torch.zeros(3, 5))
    with pytest.raises(RuntimeError), in_use(found):
        plain(torch.zeros(3, 5))
    assert "forward" not in plain.__dict__
