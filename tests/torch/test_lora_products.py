"""LoRA layers whose adapter is added in place, against PEFT's own code."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

from palmette.engine.fast_modules import in_use, swaps
from palmette.engine.lora_products import is_lora_layer


@pytest.fixture
def adapted(policy: LlamaForCausalLM) -> Any:
    """A model with an adapter that changes its outputs."""
    torch.manual_seed(0)
    model: Any = get_peft_model(copy.deepcopy(policy), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model.eval()


def fast(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with in_use(swaps(model)):
        found: torch.Tensor = model(tokens).logits
    assert all("forward" not in module.__dict__ for module in model.modules())
    return found


@pytest.mark.parametrize("rows", [1, 3, 20])
@torch.inference_mode()
def test_outputs_are_those_of_peft_with_the_adapter_and_without(adapted: Any, rows: int) -> None:
    tokens = 1 + torch.arange(rows)[None] % 7
    own = adapted(tokens).logits
    assert sum(map(is_lora_layer, adapted.modules())) == 14
    torch.testing.assert_close(fast(adapted, tokens), own, rtol=0, atol=1e-4)
    with adapted.disable_adapter():
        base = adapted(tokens).logits
        torch.testing.assert_close(fast(adapted, tokens), base, rtol=0, atol=1e-4)
    assert (own - base).abs().max() > 1e-2


def test_gradients_are_those_of_peft(adapted: Any) -> None:
    tokens = 1 + torch.arange(9)[None] % 7
    weights = [weight for weight in adapted.parameters() if weight.requires_grad]
    own = torch.autograd.grad(adapted(tokens).logits.square().sum(), weights)
    found = torch.autograd.grad(fast(adapted, tokens).square().sum(), weights)
    assert all(torch.equal(one, other) for one, other in zip(own, found, strict=True))


@torch.inference_mode()
def test_several_adapters_are_left_to_peft(adapted: Any) -> None:
    tokens = 1 + torch.arange(9)[None] % 7
    alone = adapted(tokens).logits
    adapted.add_adapter("second", LoraConfig(r=2, target_modules="all-linear"))
    for name, weight in adapted.named_parameters():
        if "lora_B.second" in name:
            torch.nn.init.normal_(weight, std=0.1)
    adapted.base_model.set_adapter(["default", "second"])
    both = adapted(tokens).logits
    assert (both - alone).abs().max() > 1e-2
    torch.testing.assert_close(fast(adapted, tokens), both, rtol=0, atol=1e-4)
