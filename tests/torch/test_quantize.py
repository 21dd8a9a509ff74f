"""Quantized linear layers against hand-worked numbers and against bounds of their rounding."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import LlamaForCausalLM, LlamaForTokenClassification, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.errors import ConfigError
from palmette.run.parts import Parts
from palmette.run.search import notices_of
from palmette.score.scorer import Candidate
from palmette.score.scorers.head import PrmScorer
from palmette.zoo.foreign import quiet
from palmette.zoo.load import load_policy, load_reward
from palmette.zoo.quantize import KINDS, Bfloat16Linear, Int8Linear, is_quantized, quantize_linear, rotation

Prompt = Callable[[str], tuple[int, ...]]


def layer(outputs: int, inputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


def quantized(model: Any, kind: str) -> Any:
    copied = deepcopy(model)
    quantize_linear(copied, kind)
    return copied


def backend(model: Any, tokenizer: PreTrainedTokenizerFast) -> LocalBackend:
    return LocalBackend(model, tokenizer, sampling=Sampling(), batch_rows=64)


def written(by: LocalBackend, prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [step.tokens for step in by.expand([Expansion("q", 0, prefix, seed, 12) for seed in range(12)])]


@torch.no_grad()
def test_int8_rounds_weights_by_output_and_inputs_by_token() -> None:
    plain = nn.Linear(3, 2)  # An odd number of inputs is not rotated.
    plain.weight.copy_(torch.tensor([[1.27, 0.504, 0.0], [0.0, 0.0, 0.0]]))
    plain.bias.copy_(torch.tensor([0.5, 3.0]))
    made = Int8Linear(plain)
    # Scale 0.01: 0.504 is 50.4 and becomes 50. A row of zeros stays one.
    assert made.weight.tolist() == [[127, 50, 0], [0, 0, 0]]
    # The first token's scale is 2: 100.9 is 50.45 and becomes 50. The second's is 0.1.
    outputs = made(torch.tensor([[254.0, 100.9, 7.0], [12.7, -12.7, 0.0], [0.0, 0.0, 0.0]]))
    expected = [[(127 * 127 + 50 * 50) * 0.02 + 0.5, 3.0], [(127 * 127 - 127 * 50) * 0.001 + 0.5, 3.0], [0.5, 3.0]]
    assert torch.allclose(outputs, torch.tensor(expected))


@pytest.mark.parametrize(("inputs", "size"), [(3, 1), (6, 2), (96, 32), (576, 64), (1024, 64)])
def test_rotations_are_their_own_inverse(inputs: int, size: int) -> None:
    matrix = rotation(inputs, torch.device("cpu"))
    assert len(matrix) == size
    assert torch.allclose(matrix @ matrix, torch.eye(size), atol=1e-6)
    assert torch.allclose(matrix.abs(), torch.full((size, size), size**-0.5))


@torch.no_grad()
def test_int8_errs_by_no_more_than_half_a_grid_point_of_each_factor() -> None:
    plain = layer(48, 96)
    inputs = torch.randn(21, 96)
    matrix = rotation(96, torch.device("cpu")).double()
    weight, rows = ((one.double().view(-1, 32) @ matrix).view(one.shape) for one in (plain.weight, inputs))
    weight_step = weight.abs().amax(1) / 127
    row_step = rows.abs().amax(-1, keepdim=True) / 127
    bound = (
        rows.abs().sum(-1, keepdim=True) * weight_step / 2
        + row_step / 2 * weight.abs().sum(1)
        + 96 * row_step * weight_step / 4
    )
    exact = nn.functional.linear(inputs.double(), plain.weight.double(), plain.bias.double())
    error = (Int8Linear(plain)(inputs).double() - exact).abs()
    assert bool((error <= bound + 1e-5).all())
    assert float(error.max()) > 1e-4


@torch.no_grad()
def test_int8_keeps_small_inputs_beside_large_ones() -> None:
    plain = layer(48, 64, bias=False)
    plain.weight[:, 5] = 0
    inputs = torch.randn(21, 64)
    inputs[:, 5] = 300.0  # Alone it would set a scale of 2.4, and round most others to 0.
    exact = plain(inputs)
    assert float((Int8Linear(plain)(inputs) - exact).square().mean() / exact.square().mean()) < 0.05


@pytest.mark.parametrize("bias", [False, True])
def test_bfloat16_multiplies_what_is_rounded(bias: bool) -> None:
    plain = layer(48, 96, bias)
    inputs = torch.randn(3, 7, 96)
    rounded = nn.functional.linear(inputs.bfloat16().double(), plain.weight.bfloat16().double())
    expected = rounded.bfloat16().double() + (plain.bias.double() if bias else 0)
    outputs = Bfloat16Linear(plain)(inputs)
    assert outputs.dtype == torch.float32
    # The sum may fall on the other side of a border between two numbers of 8 bits.
    assert torch.allclose(outputs.double(), expected, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_quantized_model_generates_with_keys_and_values_in_the_dtype_of_before(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, kind: str
) -> None:
    model = quantized(policy, kind)
    assert is_quantized(model)
    assert not is_quantized(policy)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert {type(module) for module in layers} == {KINDS[kind]}
    bits = {parameter.dtype for module in layers for parameter in [module.weight]}
    assert bits == {{"bfloat16": torch.bfloat16, "int8": torch.int8}[kind]}
    quantized_backend = backend(model, tokenizer)
    assert quantized_backend.tree.cache.pool.shape.dtype == torch.float32
    first = written(quantized_backend, prompt("(3+4)*2-5"))
    assert first == written(backend(quantized(policy, kind), tokenizer), prompt("(3+4)*2-5"))
    with torch.inference_mode():
        tokens = torch.tensor([prompt("(3+4)*2-5")])
        near, exact = (one(input_ids=tokens).logits.log_softmax(-1) for one in (model, policy))
    divergence = float((exact.exp() * (exact - near)).sum(-1).mean())
    assert 0 < divergence < 0.05


@pytest.mark.parametrize("kind", list(KINDS))
def test_quantized_models_take_adapters_and_new_weights(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(3)
    settings = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    with quiet():
        get_peft_model(deepcopy(policy), settings).save_pretrained(str(tmp_path))
        adapted = PeftModel.from_pretrained(quantized(policy, kind), str(tmp_path), autocast_adapter_dtype=False).eval()
    prefix = prompt("(3+4)*2-5")
    under_test = backend(quantized(policy, kind), tokenizer)
    bare = written(under_test, prefix)
    under_test.use_adapter(str(tmp_path))
    assert written(under_test, prefix) == written(backend(adapted, tokenizer), prefix) != bare
    under_test.use_adapter(None)
    assert written(under_test, prefix) == bare
    source = LlamaForCausalLM(policy.config).eval()
    tensors = {name: tensor for name, tensor in source.state_dict().items() if name != "lm_head.weight"}
    under_test.update_weights(tensors)
    assert written(under_test, prefix) == written(backend(quantized(source, kind), tokenizer), prefix) != bare
    under_test.tree.cache.check_integrity()


def test_a_scalar_head_is_not_quantized(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = quantized(reward, "int8")
    assert type(model.score) is nn.Linear
    assert type(model.model.layers[0].mlp.up_proj) is Int8Linear
    asked = ({"role": "user", "content": "(3+4)*2"},)
    steps = [Candidate(asked, (step,), False) for step in ("3+4=7\n", "7*2=14\n", "9-5=4\n")]
    near, exact = (PrmScorer(one, tokenizer, batch_rows=4).score(steps) for one in (model, reward))
    assert near == pytest.approx(exact, abs=0.1)
    assert len(set(near)) == 3


def test_models_are_quantized_when_they_are_loaded() -> None:
    model, _ = load_policy("seedling", quantize="int8")
    plain, _ = load_policy("seedling")
    assert is_quantized(model)
    assert not is_quantized(plain)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert is_quantized(load_reward("seedling-prm", quantize="bfloat16")[0])


def test_wrong_settings_are_refused_before_weights_are_read() -> None:
    with pytest.raises(ConfigError, match="quantize 'int4' is unknown: use one of none, bfloat16, int8"):
        load_policy("seedling", quantize="int4")
    with pytest.raises(ConfigError, match="quantize 'int8' is for the CPU, not for 'meta': set it to 'none'"):
        load_policy("seedling", quantize="int8", device="meta")


@pytest.mark.parametrize(("flags", "slow"), [("sse2 avx2", {"int8"}), ("sse2 avx2 avx512f", set())])
def test_a_backend_and_a_scorer_tell_what_this_processor_is_slow_with(
    policy: LlamaForCausalLM,
    reward: LlamaForTokenClassification,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    slow: set[str],
) -> None:
    monkeypatch.setattr("palmette.engine.tree_model.read_cpuinfo", lambda: f"flags\t: {flags}\n")
    scorer = PrmScorer(quantized(reward, "int8"), tokenizer, batch_rows=4)
    told = notices_of(Parts(backend(quantized(policy, "int8"), tokenizer), scorer))
    assert {line.split(" for ")[1].partition(":")[0] for line in told} == slow, told
    assert len(told) == len(slow)  # Once, though both have it to tell.
    assert not notices_of(Parts(backend(policy, tokenizer), None))
