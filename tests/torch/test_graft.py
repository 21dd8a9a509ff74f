"""Adapters of the zoo merged with their base: as PEFT merges them, with the head of a reward model, or refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.errors import BackendError
from palmette.run.row_models import ADAPTER, save_classifier
from palmette.train.model_parts import train_lora
from palmette.zoo.catalog import ENTRIES, Entry
from palmette.zoo.folder import sha256
from palmette.zoo.graft import graft
from palmette.zoo.load import load_policy, load_reward
from palmette.zoo.resolve import resolve


@pytest.fixture
def base(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapted(policy: LlamaForCausalLM) -> Any:
    """Return the policy with an adapter that changes it."""
    torch.manual_seed(0)
    model = train_lora(copy.deepcopy(policy), rank=4)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model


def adapter_of(policy: LlamaForCausalLM, folder: Path) -> Any:
    model = adapted(policy)
    model.save_pretrained(folder)
    policy.config.save_pretrained(folder)
    return model


def test_a_grafted_policy_is_what_peft_merges(policy: LlamaForCausalLM, base: Path, tmp_path: Path) -> None:
    model = adapter_of(policy, tmp_path / "adapter")
    (tmp_path / "grafted").mkdir()
    graft(tmp_path / "adapter", base, tmp_path / "grafted")
    merged = model.merge_and_unload().state_dict()
    found, _ = load_policy(str(tmp_path / "grafted"), dtype="float32")
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, merged[name].to(torch.bfloat16).float()), name
    assert not torch.equal(found.model.layers[0].mlp.up_proj.weight, policy.model.layers[0].mlp.up_proj.weight)


def test_a_grafted_reward_model_has_the_head(policy: LlamaForCausalLM, base: Path, tmp_path: Path) -> None:
    model, head = adapted(policy), torch.nn.Linear(policy.config.hidden_size, 1)
    whole = tmp_path / "whole"
    save_classifier(model, head, whole)
    model.save_pretrained(whole / ADAPTER)
    adapter = whole / ADAPTER
    tensors = load_file(adapter / "adapter_model.safetensors")
    scores = {name: tensor for name, tensor in load_file(whole / "model.safetensors").items() if "score" in name}
    assert set(scores) == {"score.weight", "score.bias"}
    save_file(tensors | scores, adapter / "adapter_model.safetensors")
    (adapter / "config.json").write_text((whole / "config.json").read_text())
    (tmp_path / "grafted").mkdir()
    graft(adapter, base, tmp_path / "grafted")
    found, _ = load_reward(str(tmp_path / "grafted"))
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, load_file(whole / "model.safetensors")[name].to(torch.bfloat16).float()), name


def test_what_cannot_be_merged_is_told(policy: LlamaForCausalLM, base: Path, tmp_path: Path) -> None:
    adapter_of(policy, tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "use_dora": True}))
    with pytest.raises(BackendError, match="it is no plain LoRA .use_dora True."):
        graft(tmp_path / "adapter", base, tmp_path)
    path.write_text(json.dumps(settings))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    save_file(
        {f"{name}.more": tensor for name, tensor in tensors.items()}, tmp_path / "adapter/adapter_model.safetensors"
    )
    with pytest.raises(BackendError, match=r"up_proj.*more does not fit|does not fit"):
        graft(tmp_path / "adapter", base, tmp_path)


def test_a_name_of_the_zoo_is_merged_once_and_a_damaged_adapter_is_refused(
    policy: LlamaForCausalLM,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    adapter_of(policy, tmp_path / "adapter")
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    entry = Entry("scion", "policy", "MIT", "here", str(weights), sha256=sha256(weights), base="stock", parameters=1000)
    stock = Entry("stock", "policy", "MIT", "here", str(base / "model.safetensors"))
    for made in (entry, stock):
        monkeypatch.setitem(ENTRIES, made.name, made)
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "cache"))
    first = resolve("scion")
    assert first == resolve("scion") == str(tmp_path / "cache" / "scion")
    assert capsys.readouterr().err.count("merging scion with stock, once") == 1
    assert load_policy("scion")[0].num_parameters() == policy.num_parameters()
    weights.write_bytes(weights.read_bytes() + b"0")
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "other"))
    with pytest.raises(BackendError, match="is damaged: its SHA-256 is not the expected one"):
        resolve("scion")
