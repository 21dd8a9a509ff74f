"""Faster code of known modules against their own, and which modules get it."""

from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from palmette.engine.fast_modules import fast_norm, in_use, swaps

TINY: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32,
}  # fmt: skip


def norm(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    made = LlamaRMSNorm(48, eps=1e-5)
    torch.nn.init.normal_(made.weight)
    return made.to(dtype)


@pytest.mark.parametrize("shape", [(1, 48), (1, 5, 48), (2, 3, 4, 48), (0, 48)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
@torch.inference_mode()
def test_a_norm_gives_what_it_gives_by_itself(shape: tuple[int, ...], size: float) -> None:
    made, values = norm(), torch.randn(*shape) * size
    torch.testing.assert_close(fast_norm(made, values), made(values), rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_a_norm_of_zeros_is_zero() -> None:
    assert not fast_norm(norm(), torch.zeros(2, 48)).any()


def test_other_dtypes_and_gradients_are_computed_by_the_norm_s_own_code() -> None:
    rounded, values = norm(torch.bfloat16), torch.randn(3, 48)
    with torch.inference_mode():
        assert torch.equal(fast_norm(rounded, values.bfloat16()), rounded(values.bfloat16()))
    made = norm()
    assert torch.equal(fast_norm(made, values), made(values)) and fast_norm(made, values).requires_grad


def test_norms_with_llama_s_code_and_plain_linear_layers_are_known_whatever_their_class() -> None:
    def kinds(model: torch.nn.Module) -> dict[str, int]:
        names = [type(module).__name__ for module, _ in swaps(model)]
        return {name: names.count(name) for name in sorted(set(names))}

    assert kinds(LlamaForCausalLM(LlamaConfig(**TINY))) == {"Linear": 8, "LlamaRMSNorm": 3}
    assert kinds(Qwen3ForCausalLM(Qwen3Config(**TINY))) == {"Linear": 8, "Qwen3RMSNorm": 5}
    assert kinds(Gemma2ForCausalLM(Gemma2Config(**TINY))) == {"Linear": 8}  # Its norms add one to their weights.


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
