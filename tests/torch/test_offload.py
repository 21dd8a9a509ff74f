"""A model that is streamed layer by layer returns what it returns with all layers loaded."""

import copy
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from palmette.errors import BackendError, PalmetteError
from palmette.memory.offload import layers_of, streamed
from palmette.memory.offload_copies import HostCopies
from palmette.memory.offload_pages import MappedWeights, _page_ranges
from palmette.train.samples import Sample
from palmette.train.update.reference import response_logprobs

SAMPLES = [
    Sample(prompt, response, (1.0,) * len(response))
    for prompt, response in [((1, 5), (3, 4, 5)), ((2,), (7,)), ((9, 3, 4), (4, 4))]
]


@pytest.fixture
def mapped(policy: LlamaForCausalLM, tmp_path: Path) -> LlamaForCausalLM:
    policy.save_pretrained(tmp_path)
    return LlamaForCausalLM.from_pretrained(tmp_path).eval().requires_grad_(False)


class RecordingLoader:
    """A layer loader that loads nothing and records its calls."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {layer: place for place, layer in enumerate(layers_of(model))}
        self.started: list[int] = []
        self._to_wait_for: list[int] = []
        self.unloaded: list[int] = []
        self.held: set[int] = set()
        self.most_held = 0

    def start(self, layer: nn.Module) -> None:
        self.started.append(self._names[layer])
        self._to_wait_for.append(self._names[layer])
        self.held.add(self._names[layer])
        self.most_held = max(self.most_held, len(self.held))

    def wait(self, layer: nn.Module) -> None:
        self._to_wait_for.remove(self._names[layer])  # Once for each start, as for a CUDA event.

    def unload(self, layer: nn.Module) -> None:
        if layer in self._names:
            self.unloaded.append(self._names[layer])
            self.held.discard(self._names[layer])


def present_pages(layers: Sequence[nn.Module]) -> int:
    """Return how many pages of the layers' weights this process has in its page table."""
    found = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as table:
        for first, last in _page_ranges([weight for layer in layers for weight in layer.parameters()], round_out=False):
            table.seek(first // mmap.PAGESIZE * 8)
            entries = array("Q", table.read((last - first) // mmap.PAGESIZE * 8))
            found += sum(entry >> 63 for entry in entries)
    return found


def test_a_model_on_mapped_pages_gives_the_same_and_leaves_nothing(policy: LlamaForCausalLM, tmp_path: Path) -> None:
    config = copy.deepcopy(policy.config)
    config.update({"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64})  # 3.9 MB a layer.
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    mapped = LlamaForCausalLM.from_pretrained(tmp_path).eval().requires_grad_(False)
    layers = layers_of(mapped)
    whole = response_logprobs(mapped, SAMPLES, micro_batch_tokens=8)
    pages = present_pages(layers)
    assert pages > 1500
    with streamed(mapped, MappedWeights(mapped)):
        assert response_logprobs(mapped, SAMPLES, micro_batch_tokens=8) == whole
    assert present_pages(layers) < 0.1 * pages  # The kernel maps some around each page that is read beside them.
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


def test_log_probabilities_are_at_the_samples_own_temperature_and_of_every_token(policy: LlamaForCausalLM) -> None:
    cold = [replace(sample, temperature=0.7) for sample in SAMPLES]
    expected = response_logprobs(policy, SAMPLES, micro_batch_tokens=100, temperature=0.7)
    assert response_logprobs(policy, cold, micro_batch_tokens=100) == expected
    masked = [replace(cold[0], mask=(False, True, False)), *cold[1:]]
    assert response_logprobs(policy, masked, micro_batch_tokens=100) == expected
    with pytest.raises(PalmetteError, match="use separate calls"):
        response_logprobs(policy, [cold[0], SAMPLES[1]], micro_batch_tokens=100)


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


def test_at_most_two_layers_are_loaded_and_all_are_unloaded(policy: LlamaForCausalLM) -> None:
    config = copy.deepcopy(policy.config)
    config.num_hidden_layers = 5
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    loader = RecordingLoader(model)
    with streamed(model, loader):
        for _ in range(3):
            model(torch.tensor([[1, 5, 3]]))
        assert loader.started == loader.unloaded == [0, 1, 2, 3, 4] * 3
        assert loader.most_held <= 2
    assert loader.held == set()


def test_a_forward_pass_that_fails_leaves_no_hook_behind(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).requires_grad_(False)
    with pytest.raises(IndexError), streamed(model, RecordingLoader(model)):
        model(torch.tensor([[99_999]]))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers_of(model))


def test_a_forward_pass_that_runs_out_of_memory_can_be_tried_again_in_the_same_block(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).eval().requires_grad_(False)
    tokens = torch.tensor([[1, 5, 3]])
    expected = model(tokens).logits
    loader = RecordingLoader(model)
    for place in range(len(layers_of(model))):
        with streamed(model, loader):
            failing = layers_of(model)[place].get_submodule("mlp").register_forward_pre_hook(_run_out_of_memory)
            with pytest.raises(RuntimeError, match="can't allocate"):
                model(tokens)
            failing.remove()
            assert torch.equal(model(tokens).logits, expected)
        assert loader.held == set()
    assert loader.most_held <= 2


def _run_out_of_memory(*_: object) -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def test_a_model_that_is_trained_is_refused(policy: LlamaForCausalLM) -> None:
    model = copy.deepcopy(policy).requires_grad_(True)
    with (
        pytest.raises(BackendError, match=r"Freeze it first, with requires_grad_\(False\)"),
        streamed(model, RecordingLoader(model)),
    ):
        pass
