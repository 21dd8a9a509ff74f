"""Loading tiny models from folders: what is returned, what is refused."""

import json
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig
from transformers.utils import logging as transformers_logging

from palmette.errors import BackendError, ConfigError
from palmette.zoo.foreign import as_backend_error, quiet
from palmette.zoo.load import load_embedder, load_likelihood_model, load_policy, load_reward

# Half of transformers has no type annotations.
LlamaForCausalLM: Any = transformers.LlamaForCausalLM
LlamaForTokenClassification: Any = transformers.LlamaForTokenClassification
PreTrainedTokenizerFast: Any = transformers.PreTrainedTokenizerFast


@pytest.fixture(autouse=True)
def silence_is_kept(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Loading prints nothing and warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert capfd.readouterr() == ("", "")


def tiny_config(**changes: Any) -> LlamaConfig:
    settings = {
        "vocab_size": 20,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    return LlamaConfig(**{**settings, **changes})


def save(model: Any, folder: Path) -> Path:
    vocabulary = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", *"0123456789+-*=()"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save(LlamaForCausalLM(tiny_config()), tmp_path / "policy")


@pytest.fixture
def reward(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    return save(LlamaForTokenClassification(tiny_config(num_labels=1)), tmp_path / "reward")


def save_adapter(base: Path, folder: Path, **changes: Any) -> Path:
    with quiet():
        model, _ = load_policy(str(base))
        settings = {"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **changes}
        get_peft_model(model, LoraConfig(**settings)).save_pretrained(str(folder))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- what is returned


def test_a_policy_comes_frozen_in_eval_mode_with_its_embedding_tied(policy: Path) -> None:
    model: Any
    tokenizer: Any
    model, tokenizer = load_policy(str(policy))
    assert isinstance(model, LlamaForCausalLM)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert tokenizer.decode(tokenizer.encode("12+3=15")).replace(" ", "") == "12+3=15"


def test_a_text_longer_than_the_model_takes_is_encoded_without_a_warning(policy: Path) -> None:
    tokenizer: Any = load_policy(str(policy))[1]
    tokenizer.model_max_length = 2
    assert len(tokenizer("a b c d e f g h")["input_ids"]) > 2


def test_the_weights_are_those_of_the_file(policy: Path) -> None:
    model, _ = load_policy(str(policy))
    stored = load_file(policy / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())


def test_changing_loaded_weights_does_not_change_the_file(policy: Path) -> None:
    before = (policy / "model.safetensors").read_bytes()
    model, _ = load_policy(str(policy))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert (policy / "model.safetensors").read_bytes() == before


def test_a_dtype_is_honored(policy: Path) -> None:
    model, _ = load_policy(str(policy), dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_reward_model_scores_each_token_once(reward: Path) -> None:
    model, tokenizer = load_reward(str(reward))
    assert not model.training
    ids = torch.tensor([tokenizer.encode("1+2=3")])
    logits = model(input_ids=ids).logits
    assert logits.shape == (1, 5, 1)
    with quiet():
        saved = LlamaForTokenClassification.from_pretrained(reward).eval()
    assert torch.equal(logits, saved(input_ids=ids).logits)


def test_shards_are_read(policy: Path, tmp_path: Path) -> None:
    model, _ = load_policy(str(policy))
    with quiet():
        model.save_pretrained(tmp_path / "shards", max_shard_size="1KB")
    shutil.copy(policy / "tokenizer.json", tmp_path / "shards")
    assert not (tmp_path / "shards/model.safetensors").exists()
    again, _ = load_policy(str(tmp_path / "shards"))
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    victim = sorted((tmp_path / "shards").glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(BackendError, match=f"cannot read .*{victim.name}: No such file"):
        load_policy(str(tmp_path / "shards"))
    (tmp_path / "shards/model.safetensors.index.json").write_text('{"weight_map": 1}')
    with pytest.raises(BackendError, match=r"index\.json is damaged: it has no weight_map"):
        load_policy(str(tmp_path / "shards"))


# --- settings that are wrong


def test_an_unknown_dtype_fails_with_the_known_ones(policy: Path) -> None:
    with pytest.raises(ConfigError, match="dtype 'fp8' is unknown: use one of float32, bfloat16, float16"):
        load_policy(str(policy), dtype="fp8")


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_fails_before_weights_are_read(policy: Path, device: str) -> None:
    (policy / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ConfigError, match=f"device '{device}' cannot be used .*: use 'cpu'"):
        load_policy(str(policy), device=device)


@pytest.mark.parametrize(
    ("loader", "name", "advice"),
    [
        (load_policy, "seedling-prm", "its role is reward. Try seedling or seedling-words or sapling or smollm2-135m"),
        (load_policy, "minilm", "its role is embedder. Try seedling or seedling-words or sapling or smollm2-135m"),
        (load_reward, "smollm2-135m", "its role is policy. Try seedling-ripe or seedling-prm"),
        (load_embedder, "seedling", "its role is policy. Try minilm"),
    ],
)
def test_a_zoo_model_in_another_role_fails_with_names_that_fit(loader: Any, name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        loader(name)


# --- weights that are wrong


def test_a_policy_has_no_reward_head(policy: Path) -> None:
    with pytest.raises(BackendError, match=r"cannot serve as reward: its weights lack score\.bias, score\.weight"):
        load_reward(str(policy))


def test_a_reward_model_is_no_policy(reward: Path) -> None:
    with pytest.raises(BackendError, match="cannot serve as policy: it is a LlamaForTokenClassification"):
        load_policy(str(reward))


def test_two_labels_are_no_score(tmp_path: Path) -> None:
    folder = save(LlamaForTokenClassification(tiny_config(num_labels=2)), tmp_path / "two")
    with pytest.raises(BackendError, match="cannot serve as reward: it gives 2 labels per token, not 1"):
        load_reward(str(folder))


def test_a_missing_tensor_is_named_instead_of_invented(policy: Path) -> None:
    tensors = load_file(policy / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, policy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackendError, match=r"its weights lack model\.norm\.weight, which would start from random"):
        load_policy(str(policy))


def test_many_missing_tensors_are_counted(policy: Path) -> None:
    edit(policy / "config.json", num_hidden_layers=3)
    with pytest.raises(BackendError, match="and 6 more, which would start from random numbers"):
        load_policy(str(policy))


def test_weights_of_another_shape_are_refused_in_one_line(policy: Path) -> None:
    edit(policy / "config.json", intermediate_size=32)
    with pytest.raises(BackendError, match=r"cannot load .* as policy: ") as caught:
        load_policy(str(policy))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_weights_are_damaged(policy: Path, keep: int) -> None:
    path = policy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BackendError, match=r"policy/model\.safetensors is damaged: "):
        load_policy(str(policy))


def test_a_pickle_is_never_opened(policy: Path, tmp_path: Path) -> None:
    (policy / "model.safetensors").unlink()
    (policy / "pytorch_model.bin").write_bytes(f"cos\nmkdir\n(S'{tmp_path}/opened'\ntR.".encode())
    with pytest.raises(BackendError, match=r"only pytorch_model\.bin, a pickle, which may run code when read"):
        load_policy(str(policy))
    assert not (tmp_path / "opened").exists()


def test_code_beside_the_weights_is_never_run(policy: Path) -> None:
    (policy / "evil.py").write_text("raise SystemExit('ran')")
    edit(policy / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    with pytest.raises(BackendError, match=r"cannot load .* as policy: ValueError"):
        load_policy(str(policy))


def test_a_config_that_is_not_json_is_damaged(policy: Path) -> None:
    (policy / "config.json").write_text("{")
    with pytest.raises(BackendError, match=r"config\.json is damaged"):
        load_policy(str(policy))


def test_a_damaged_tokenizer_is_one_line(policy: Path) -> None:
    (policy / "tokenizer.json").write_text("{}")
    with pytest.raises(BackendError, match=r"cannot load .* as policy: ") as caught:
        load_policy(str(policy))
    assert "\n" not in str(caught.value)


def test_a_folder_without_tokenizer_is_refused(policy: Path) -> None:
    (policy / "tokenizer.json").unlink()
    with pytest.raises(BackendError, match=r"has no tokenizer: copy the tokenizer\.json of its base model there"):
        load_policy(str(policy))


def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        BackendError,
        match=r"^cannot reach the hub to download some-org/some-model, .*: give a local folder, or a model that",
    ):
        load_policy("some-org/some-model")


@pytest.mark.parametrize(("package", "extra"), [("peft", "adapters"), ("sentence_transformers", "embed")])
def test_a_missing_library_fails_with_the_extra_that_installs_it(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendError, match=rf"pip install 'palmette\[{extra}\]'"):
        load_policy(str(policy), adapter=str(tmp_path)) if package == "peft" else load_embedder(str(policy))


def test_memory_errors_pass_unchanged() -> None:
    with pytest.raises(torch.OutOfMemoryError), as_backend_error("cannot load"):
        raise torch.OutOfMemoryError("CUDA out of memory")


# --- adapters


def test_an_adapter_changes_what_its_base_says(policy: Path, tmp_path: Path) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    base, tokenizer = load_policy(str(policy))
    adapted, _ = load_policy(str(policy), adapter=str(adapter))
    ids = torch.tensor([tokenizer.encode("1+2=")])
    assert not torch.allclose(adapted(input_ids=ids).logits, base(input_ids=ids).logits)
    assert not adapted.training
    assert not any(parameter.requires_grad for parameter in adapted.parameters())
    state = adapted.state_dict()
    for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
        assert torch.equal(state[name.replace(".weight", ".default.weight")], tensor)


def test_an_adapter_takes_the_dtype_of_its_base(policy: Path, tmp_path: Path) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    adapted, _ = load_policy(str(policy), adapter=str(adapter), dtype="bfloat16")
    assert {parameter.dtype for parameter in adapted.parameters()} == {torch.bfloat16}


def test_an_adapter_of_a_base_moved_elsewhere_still_fits(policy: Path, tmp_path: Path) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    before, _ = load_policy(str(policy), adapter=str(adapter))
    (tmp_path / "elsewhere").mkdir()
    moved = policy.rename(tmp_path / "elsewhere/policy")
    after, _ = load_policy(str(moved), adapter=str(adapter))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(after(input_ids=ids).logits, before(input_ids=ids).logits)


def test_an_adapter_of_another_base_is_refused_until_its_record_is_changed(policy: Path, tmp_path: Path) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    other = shutil.copytree(policy, tmp_path / "other")
    with pytest.raises(BackendError, match=f"was trained on '{policy}', not on '{other}'"):
        load_policy(str(other), adapter=str(adapter))
    edit(adapter / "adapter_config.json", base_model_name_or_path=str(other))
    worn, _ = load_policy(str(other), adapter=str(adapter))
    names = load_file(adapter / "adapter_model.safetensors")
    assert {name.replace(".weight", ".default.weight") for name in names} <= set(worn.state_dict())


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        ({"hidden_size": 16}, "size mismatch"),
        ({"num_hidden_layers": 1}, "the model does not have 4 tensors, such as .*layers.1"),
        ({"num_hidden_layers": 3}, "it lacks 4 tensors, such as .*layers.2"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    policy: Path, tmp_path: Path, changes: dict[str, int], trouble: str
) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    other = save(LlamaForCausalLM(tiny_config(**changes)), tmp_path / "copy" / "policy")
    with pytest.raises(BackendError, match=f"adapter {adapter} does not fit {other}: .*{trouble}"):
        load_policy(str(other), adapter=str(adapter))


def test_an_adapter_with_another_vocabulary_is_refused(policy: Path, tmp_path: Path) -> None:
    wider = LlamaForCausalLM(tiny_config(vocab_size=tiny_config().vocab_size + 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The head is tied to the embedding.
        adapted = get_peft_model(wider, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    edit(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path=str(policy))
    with pytest.raises(BackendError, match=r"does not fit .*size mismatch for .*lm_head"):
        load_policy(str(policy), adapter=str(tmp_path / "adapter"))


def test_an_adapter_for_modules_the_base_lacks_is_refused(policy: Path, tmp_path: Path) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    edit(adapter / "adapter_config.json", target_modules=["c_attn"])
    with pytest.raises(BackendError, match=r"does not fit .*c_attn"):
        load_policy(str(policy), adapter=str(adapter))


def test_a_missing_adapter_is_a_wrong_setting(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no adapter at {tmp_path / 'nothing'}"):
        load_policy(str(policy), adapter=str(tmp_path / "nothing"))


def test_a_damaged_adapter_is_refused(policy: Path, tmp_path: Path) -> None:
    path = save_adapter(policy, tmp_path / "adapter") / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackendError, match=r"adapter/adapter_model\.safetensors is damaged"):
        load_policy(str(policy), adapter=str(path.parent))


def test_a_pickled_adapter_is_never_opened(policy: Path, tmp_path: Path) -> None:
    adapter = save_adapter(policy, tmp_path / "adapter")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(BackendError, match=r"only adapter_model\.bin, a pickle"):
        load_policy(str(policy), adapter=str(adapter))


def test_a_reward_model_can_have_an_adapter_too(reward: Path, tmp_path: Path) -> None:
    settings = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    with quiet():
        made = get_peft_model(load_reward(str(reward))[0], settings).eval()
        made.save_pretrained(str(tmp_path / "adapter"))
    base, tokenizer = load_reward(str(reward))
    adapted, _ = load_reward(str(reward), adapter=str(tmp_path / "adapter"))
    ids = torch.tensor([tokenizer.encode("1+2")])
    assert torch.equal(adapted(input_ids=ids).logits, made(input_ids=ids).logits)
    assert not torch.equal(adapted(input_ids=ids).logits, base(input_ids=ids).logits)


# --- embedders


def test_a_policy_folder_is_no_embedder(policy: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no sentence-transformers folder: it has no modules\.json"):
        load_embedder(str(policy))


def test_an_embedder_of_foreign_classes_is_refused(policy: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "subprocess.Popen"}]
    (policy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(BackendError, match=r"cannot load .* as embedder: ValueError"):
        load_embedder(str(policy))


def test_an_embedder_with_a_pickled_layer_is_refused(policy: Path) -> None:
    (policy / "modules.json").write_text("[]")
    (policy / "2_Dense").mkdir()
    (policy / "2_Dense/config.json").write_text("{}")
    (policy / "2_Dense/pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(BackendError, match=r"2_Dense needs weights in model\.safetensors, it has only pytorch_model"):
        load_embedder(str(policy))


# --- silence


def test_what_was_set_before_is_set_again_after() -> None:
    verbosity, level = transformers_logging.get_verbosity(), logging.getLogger("peft").level
    bars = transformers_logging.is_progress_bar_enabled()
    with suppress(KeyError), quiet():
        assert not transformers_logging.is_progress_bar_enabled()
        warnings.warn("unheard", stacklevel=1)
        raise KeyError
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled() == bars
    assert logging.getLogger("peft").level == level


def test_any_causal_model_can_score_by_likelihood() -> None:
    for name in ("seedling-ripe", "seedling"):
        model, _ = load_likelihood_model(name)
        assert model.config.architectures == ["LlamaForCausalLM"]


def test_a_model_that_scores_the_other_way_is_refused_with_the_setting_that_helps() -> None:
    with pytest.raises(BackendError, match=r"seedling-prm cannot serve as reward: .* set reward\.score to head"):
        load_likelihood_model("seedling-prm")
    with pytest.raises(BackendError, match=r"seedling-ripe cannot serve as reward: .* reward\.score=likelihood"):
        load_reward("seedling-ripe")
