"""A model that is streamed layer by layer returns what it returns with all layers loaded."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from palmette.errors import BackendError
from palmette.memory.offload import layers_of, streamed
from palmette.memory.offload_copies import HostCopies
from palmette.memory.offload_pages import MappedWeights, _page_ranges
from palmette.train.reference import response_logprobs
from palmette.train.samples import Sample

SAMPLES = [Sample((1, 5), (3, 4, 5), 1.0), Sample((2,), (7,), 1.0), Sample((9, 3, 4), (4, 4), 1.0)]


@pytest.fixture
def mapped(policy: LlamaForCausalLM, tmp_path: Path) -> LlamaForCausalLM:
    policy.save_pretrained(tmp_path)
    return LlamaForCausalLM.from_pretrained(tmp_path).eval().requires_grad_(False)


class RecordingLoader:
    """A layer loader that loads nothing and records its calls."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {layer: place for place, layer in enumerate(layers_of(model))}
        self.started: list[int] = []
        self.unloaded: list[int] = []
        self.loaded = 0
        self.most_loaded = 0

    def start(self, layer: nn.Module) -> None:
        self.started.append(self._names[layer])
        self.loaded += 1
        self.most_loaded = max(self.most_loaded, self.loaded)

    def wait(self, layer: nn.Module) -> None:
        assert self._names[layer] in self.started

    def unload(self, layer: nn.Module) -> None:
        if layer in self._names:
            self.unloaded.append(self._names[layer])
            self.loaded -= 1


def test_a_model_on_mapped_pages_returns_the_same_inside_and_after(mapped: LlamaForCausalLM) -> None:
    whole = response_logprobs(mapped, SAMPLES, micro_batch_tokens=8)
    with streamed(mapped, MappedWeights(mapped)):
        assert response_logprobs(mapped, SAMPLES, micro_batch_tokens=8) == whole
    assert (
        response_logprobs(mapped, SAMPLES, micro_batch_tokens=8) == whole
    )  # Dropped pages are read again from the file.


def test_log_probabilities_of_responses_are_those_of_full_logits(policy: LlamaForCausalLM) -> None:
    found = response_logprobs(policy, SAMPLES, micro_batch_tokens=100, temperature=0.7)
    for sample, numbers in zip(SAMPLES, found, strict=True):
        with torch.no_grad():
            logits = policy(torch.tensor([[*sample.prompt, *sample.response]])).logits[0] / 0.7
        logs = torch.log_softmax(logits, -1)[len(sample.prompt) - 1 :]
        assert numbers == pytest.approx([float(logs[at, token]) for at, token in enumerate(sample.response)], abs=1e-5)


def test_pages_written_to_are_never_dropped(mapped: LlamaForCausalLM) -> None:
    with torch.no_grad():
        mapped.model.layers[1].mlp.up_proj.weight.add_(1)
    with pytest.raises(BackendError, match="bytes of its file's mapping were written to"):
        MappedWeights(mapped)


def test_weights_without_a_file_are_refused(policy: LlamaForCausalLM) -> None:
    with pytest.raises(BackendError, match="not mapped from a safetensors file"):
        MappedWeights(policy)


def test_a_page_shared_with_a_neighbor_is_kept() -> None:
    class At(torch.Tensor):
        def data_ptr(self) -> int:
            return 4096 + 100

    weight = torch.zeros(3 * 1024).as_subclass(At)  # 12,288 bytes from 4,196 to 16,484.
    assert _page_ranges([weight], round_out=False) == [(8192, 16384)]
    assert _page_ranges([weight], round_out=True) == [(4096, 20480)]


def test_weights_are_copied_in_time_and_point_to_host_memory_afterwards(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).requires_grad_(False)
    whole = response_logprobs(model, SAMPLES, micro_batch_tokens=100)
    on_host = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    seen: list[bool] = []
    model.model.layers[1].mlp.register_forward_hook(
        lambda mlp, *_: seen.append(mlp.up_proj.weight.data_ptr() != on_host["model.layers.1.mlp.up_proj.weight"])
    )
    with streamed(model, HostCopies(model, torch.device("cpu"))):
        assert response_logprobs(model, SAMPLES, micro_batch_tokens=100) == whole
    assert seen == [True]
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == on_host


def test_at_most_two_layers_are_loaded_at_a_time(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).requires_grad_(False)
    loader = RecordingLoader(model)
    with streamed(model, loader):
        response_logprobs(model, SAMPLES, micro_batch_tokens=8)
    assert loader.started[:2] == [0, 1] and loader.unloaded[:2] == [0, 1]
    assert loader.most_loaded <= 2


def test_a_forward_pass_that_fails_leaves_no_hook_behind(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).requires_grad_(False)
    with pytest.raises(IndexError), streamed(model, RecordingLoader(model)):
        model(torch.tensor([[99_999]]))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers_of(model))


def test_a_model_that_is_trained_is_refused(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).requires_grad_(True)
    with (
        pytest.raises(BackendError, match=r"Freeze it first, with requires_grad_\(False\)"),
        streamed(model, RecordingLoader(model)),
    ):
        pass
