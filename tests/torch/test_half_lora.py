"""LoRA in half precision against the same model in float64, beside PEFT's own code."""

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from palmette.train.half_lora import add_in_half
from palmette.train.model_parts import train_lora

TOKENS = 1 + torch.arange(40).reshape(2, 20) % 7


def adapted(policy: LlamaForCausalLM, dtype: torch.dtype) -> Any:
    """The model with an adapter that changes its outputs, with weights that bfloat16 holds exactly."""
    torch.manual_seed(0)
    model: Any = train_lora(copy.deepcopy(policy).bfloat16(), rank=4)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
        weight.data = weight.data.bfloat16().to(weight.dtype)
    return model if dtype == torch.bfloat16 else model.to(dtype)


def without_ours(model: Any) -> Any:
    """The same model by PEFT's own code."""
    own = copy.deepcopy(model)
    for module in own.modules():
        module.__dict__.pop("forward", None)
    return own


def outcome(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and gradients of the adapters' weights."""
    logits = model(TOKENS).logits
    (logits.double().log_softmax(-1)[..., 3].sum()).backward()
    return logits.detach().double(), {
        name: weight.grad.double() for name, weight in model.named_parameters() if weight.grad is not None
    }


def error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The distance of all gradients from the exact ones, relative to their length."""
    squares = sum(float((found[name] - grad).square().sum()) for name, grad in exact.items())
    return float((squares / sum(float(grad.square().sum()) for grad in exact.values())) ** 0.5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_outputs_and_gradients_are_as_close_to_exact_ones_as_those_of_peft(
    policy: LlamaForCausalLM, checkpointing: bool
) -> None:
    ours = adapted(policy, torch.bfloat16)
    theirs, exact = without_ours(ours), without_ours(adapted(policy, torch.float64))
    for model in (ours, theirs):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert sum("forward" in module.__dict__ for module in ours.modules()) == 14
    assert not any("forward" in module.__dict__ for module in theirs.modules())
    (logits, grads), (its_logits, its_grads), (true_logits, true_grads) = map(outcome, (ours, theirs, exact))
    assert grads.keys() == its_grads.keys() == true_grads.keys() and len(grads) == 28
    assert all(weight.grad.dtype == torch.float32 for weight in ours.parameters() if weight.grad is not None)
    assert (logits - true_logits).norm() <= 1.5 * (its_logits - true_logits).norm()
    assert 1e-3 < error(its_grads, true_grads) < 0.2
    assert error(grads, true_grads) <= 1.5 * error(its_grads, true_grads)


def test_an_adapter_that_is_switched_off_adds_nothing(policy: LlamaForCausalLM) -> None:
    model = adapted(policy, torch.bfloat16)
    with torch.no_grad(), model.disable_adapter():
        switched_off = model(TOKENS).logits
    torch.testing.assert_close(switched_off, copy.deepcopy(policy).bfloat16()(TOKENS).logits, rtol=0, atol=0)


def test_a_copy_computes_with_its_own_weights(policy: LlamaForCausalLM) -> None:
    model = adapted(policy, torch.bfloat16)
    other = copy.deepcopy(model)
    for name, weight in other.named_parameters():
        if "lora_B" in name:
            torch.nn.init.zeros_(weight)
    with torch.no_grad():
        torch.testing.assert_close(
            other(TOKENS).logits, copy.deepcopy(policy).bfloat16()(TOKENS).logits, rtol=0, atol=0
        )
        assert not torch.equal(model(TOKENS).logits, other(TOKENS).logits)


def test_layers_in_float32_are_left_to_peft(policy: LlamaForCausalLM) -> None:
    model = add_in_half(train_lora(copy.deepcopy(policy), rank=4))
    assert not any("forward" in module.__dict__ for module in model.modules())
