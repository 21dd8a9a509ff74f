"""Chunked log-probabilities against full logits: values, gradients, and where scaling in place goes wrong."""

import math

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from palmette.errors import BackendError
from palmette.train.logprobs import plain_logprobs, token_logprobs
from palmette.train.model_parts import Head, head_of


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 5, dtype=dtype), torch.randn(11, 5, dtype=dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randn(11, dtype=dtype), torch.randint(11, (7,))


def test_two_even_logits_give_half_and_ln_2() -> None:
    head = Head(torch.tensor([[1.0], [1.0]]))
    logprobs, entropies = token_logprobs(torch.tensor([[3.0]]), head, torch.tensor([1]))
    assert math.isclose(float(logprobs), -math.log(2), abs_tol=1e-7)
    assert math.isclose(float(entropies), math.log(2), abs_tol=1e-7)


def test_temperature_divides_the_logits() -> None:
    head = Head(torch.tensor([[2.0], [0.0]]), temperature=2.0)  # Logits 2 and 0, divided: 1 and 0.
    logprobs, _ = token_logprobs(torch.tensor([[1.0]]), head, torch.tensor([0]))
    assert math.isclose(float(logprobs), 1 - math.log(math.e + 1), abs_tol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("biased", [False, True])
def test_gradients_are_those_of_finite_differences(chunk: int, softcap: float | None, biased: bool) -> None:
    hidden, weight, bias, tokens = inputs()

    def both(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        head = Head(weight, bias if biased else None, softcap, temperature=0.7)
        return token_logprobs(hidden, head, tokens, chunk_tokens=chunk)

    assert torch.autograd.gradcheck(both, (hidden, weight, bias.requires_grad_(biased)))


@pytest.mark.parametrize("through", ["logprobs", "entropies", "both"])
def test_values_and_gradients_equal_the_plain_path_for_any_gradient_from_above(through: str) -> None:
    hidden, weight, bias, tokens = inputs(torch.float32)
    head = Head(weight, bias, softcap=3.0, temperature=1.3)
    above = torch.randn(2, 7)
    above[0 if through == "entropies" else 1] *= through == "both"
    found = []
    for outputs in (token_logprobs(hidden, head, tokens, chunk_tokens=2), plain_logprobs(hidden, head, tokens)):
        loss = sum((part * by).sum() for part, by in zip(outputs, above, strict=True) if by.any())
        found.append([*outputs, *torch.autograd.grad(loss, (hidden, weight))])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


def test_scaling_in_place_behind_autograd_s_back_corrupts_a_gradient_and_ours_is_exact() -> None:
    hidden, weight, _, tokens = inputs()
    cap, temperature = 2.0, 0.5
    logits = cap * torch.tanh(hidden @ weight.t() / cap)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # The normalizer keeps its input.
        (logits.logsumexp(-1).sum() + logits.div_(temperature).sum()).backward()
    capped = torch.tanh(hidden @ weight.t() / cap)
    capped.data.mul_(cap / temperature)  # tanh keeps its output for its slope: 1 - output^2.
    wrong = torch.autograd.grad(torch.log_softmax(capped, -1).gather(1, tokens[:, None]).sum(), hidden)[0]
    head = Head(weight, softcap=cap, temperature=temperature)
    plain = torch.autograd.grad(plain_logprobs(hidden, head, tokens)[0].sum(), hidden)[0]
    ours = torch.autograd.grad(token_logprobs(hidden, head, tokens, chunk_tokens=2)[0].sum(), hidden)[0]
    assert not torch.allclose(wrong, plain, rtol=0.1)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_inputs_changed_in_place_before_the_backward_pass_are_noticed() -> None:
    hidden, weight, _, tokens = inputs()
    logprobs, _ = token_logprobs(hidden * 1, Head(weight), tokens)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()


def test_a_tied_embedding_gets_the_gradient_of_both_its_uses() -> None:
    _, weight, _, tokens = inputs()
    found = []
    for path in (token_logprobs, plain_logprobs):
        hidden = torch.tanh(torch.nn.functional.embedding(tokens, weight))
        found.append(torch.autograd.grad(path(hidden, Head(weight), tokens)[0].sum(), weight)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_a_frozen_head_costs_no_gradient_buffer() -> None:
    hidden, weight, _, tokens = inputs()
    logprobs, _ = token_logprobs(hidden, Head(weight.detach()), tokens)
    seen: list[tuple[int, ...]] = []

    class Shapes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **kwargs or {})
            seen.extend(tuple(part.shape) for part in [out] if isinstance(part, torch.Tensor))
            return out

    with Shapes():
        logprobs.sum().backward()
    assert hidden.grad is not None and weight.grad is None
    assert (11, 5) not in seen


def test_bfloat16_is_summed_in_float32() -> None:
    hidden, weight, _, tokens = inputs(torch.float32)
    small, head = hidden.detach().bfloat16().requires_grad_(), weight.detach().bfloat16().requires_grad_()
    logprobs, entropies = token_logprobs(small, Head(head), tokens, chunk_tokens=2)
    assert logprobs.dtype == entropies.dtype == torch.float32
    exact = plain_logprobs(small.detach().float(), Head(head.detach().float()), tokens)[0]
    torch.testing.assert_close(logprobs, exact, rtol=0.02, atol=0.05)
    logprobs.sum().backward()
    assert small.grad is not None and small.grad.dtype == torch.bfloat16
    assert head.grad is not None and head.grad.dtype == torch.bfloat16


def test_the_head_of_a_model_brings_its_softcap() -> None:
    config = Gemma2Config(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, intermediate_size=8, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, final_logit_softcapping=5.0, pad_token_id=0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    tokens = torch.arange(1, 7)[None]
    hidden = model.model(tokens).last_hidden_state[0]
    logprobs, _ = token_logprobs(hidden, head_of(model), tokens[0])
    told = torch.log_softmax(model(tokens).logits[0], -1).gather(1, tokens[0][:, None])[:, 0]
    torch.testing.assert_close(logprobs, told, rtol=1e-5, atol=1e-5)


def test_an_adapter_on_the_head_is_refused_with_the_way_out() -> None:
    peft = pytest.importorskip("peft")
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, intermediate_size=8, num_attention_heads=2, pad_token_id=0
    )
    adapted = peft.get_peft_model(
        LlamaForCausalLM(config), peft.LoraConfig(target_modules=["lm_head", "q_proj"], ensure_weight_tying=False)
    )
    with pytest.raises(BackendError, match="Leave lm_head out of the adapter's target modules"):
        head_of(adapted)
    advised = peft.get_peft_model(LlamaForCausalLM(config), peft.LoraConfig(target_modules=["q_proj"]))
    assert head_of(advised).weight_VD.shape == (11, 8)
