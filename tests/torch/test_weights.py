"""Weights and adapters exchanged under a running backend, against backends made anew on the same weights."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, LlamaForTokenClassification, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion, Message
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.engine.weight_version import WeightVersion
from palmette.errors import BackendError, ConfigError, PalmetteError
from palmette.score.scorer import Candidate
from palmette.score.scorers.head import PrmScorer
from palmette.score.scorers.likelihood import LikelihoodScorer
from palmette.zoo.foreign import quiet

Prompt = Callable[[str], tuple[int, ...]]
Tokens = list[tuple[int, ...]]


def backend(model: Any, tokenizer: PreTrainedTokenizerFast, **options: Any) -> LocalBackend:
    return LocalBackend(model, tokenizer, sampling=Sampling(), batch_rows=64, **options)


class Grown:
    """A tree of two levels in a backend, whose second level can be written again from what is cached."""

    def __init__(self, under_test: LocalBackend, prefix: tuple[int, ...]) -> None:
        self.backend = under_test
        steps = under_test.expand([Expansion("q", 0, prefix, seed, 12, seed + 1) for seed in range(4)])
        self.wishes = [
            Expansion("q", seed + 1, (*prefix, *step.tokens), 100 * seed + child, 12)
            for seed, step in enumerate(steps)
            for child in range(3)
        ]
        self.before = self.again()

    def again(self) -> Tokens:
        return written(self.backend, self.wishes)

    def release(self) -> None:
        self.backend.release("q", list(range(5)))
        self.backend.tree.cache.check_integrity()
        assert self.backend.tree.cache.pool.taken_bytes == 0


def written(by: LocalBackend, wishes: list[Expansion]) -> Tokens:
    steps = [step.tokens for step in by.expand(wishes)]
    by.tree.cache.check_integrity()
    return steps


@pytest.fixture
def grown(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt) -> Grown:
    return Grown(backend(deepcopy(policy), tokenizer), prompt("(3+4)*2-5"))


def model_of(grown: Grown) -> Any:
    return grown.backend.tree._model


def adapter(policy: LlamaForCausalLM, folder: Path, seed: int, **changes: Any) -> str:
    torch.manual_seed(seed)
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj", "up_proj"], "init_lora_weights": False, **changes}
    with quiet():
        get_peft_model(deepcopy(policy), LoraConfig(**settings)).save_pretrained(str(folder))
    return str(folder)


def worn(policy: LlamaForCausalLM, folder: str) -> Any:
    with quiet():
        return PeftModel.from_pretrained(deepcopy(policy), folder).eval()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"fused": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
    ],
)
def test_after_an_optimizer_step_steps_are_those_of_a_backend_made_anew(
    grown: Grown, tokenizer: PreTrainedTokenizerFast, kind: Any, options: dict[str, bool]
) -> None:
    model, version = model_of(grown), grown.backend.weight_version
    assert grown.again() == grown.before
    assert grown.backend.weight_version == version == 0
    optimizer = kind(model.parameters(), lr=0.1, **options)
    model(input_ids=torch.tensor([grown.wishes[0].prefix])).logits.square().mean().backward()
    optimizer.step()
    after = grown.again()
    assert grown.backend.weight_version == 1
    assert after != grown.before
    assert after == written(backend(deepcopy(model), tokenizer), grown.wishes)
    grown.release()


def test_an_unseen_write_has_to_be_told(grown: Grown, tokenizer: PreTrainedTokenizerFast) -> None:
    model = model_of(grown)
    model.lm_head.weight.data.neg_()
    grown.backend.tree.weights_changed()
    assert grown.backend.weight_version == 1
    after = grown.again()
    assert after != grown.before
    assert after == written(backend(deepcopy(model), tokenizer), grown.wishes)


def test_weights_made_in_inference_mode_can_be_run_and_told_changed(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    with torch.inference_mode():
        model = deepcopy(policy)
    assert model.lm_head.weight.is_inference()
    grown = Grown(backend(model, tokenizer), prompt("1+2"))
    source = deepcopy(policy)
    with torch.no_grad():
        source.model.layers[0].mlp.up_proj.weight.neg_()
    grown.backend.update_weights(source.state_dict())
    after = grown.again()
    assert after != grown.before
    assert after == written(backend(source, tokenizer), grown.wishes)


def test_adapters_are_exchanged_without_touching_the_base(
    grown: Grown, policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    first, second = adapter(policy, tmp_path / "first", 1), adapter(policy, tmp_path / "second", 2, r=2)
    places = {name: tensor.data_ptr() for name, tensor in model_of(grown).state_dict().items()}
    seen = [grown.before]
    for number, folder in enumerate((first, second, first, None), 1):
        grown.backend.use_adapter(folder)
        assert grown.backend.weight_version == number
        seen.append(grown.again())
        fresh = policy if folder is None else worn(policy, folder)
        assert seen[-1] == written(backend(fresh, tokenizer), grown.wishes)
    assert seen[1] == seen[3]
    assert seen[0] == seen[4]
    assert len({tuple(steps) for steps in seen}) == 3
    assert places == {name: tensor.data_ptr() for name, tensor in model_of(grown).state_dict().items()}
    grown.release()


def test_adapters_switched_by_peft_itself_are_seen(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, tmp_path: Path
) -> None:
    folders = [adapter(policy, tmp_path / str(seed), seed) for seed in (1, 2)]
    model = worn(policy, folders[0])
    grown = Grown(backend(model, tokenizer), prompt("(3+4)*2-5"))
    expected = [
        written(backend(fresh, tokenizer), grown.wishes) for fresh in (policy, *(worn(policy, one) for one in folders))
    ]
    assert grown.before == expected[1]
    with model.disable_adapter():
        assert grown.again() == expected[0]
    assert grown.again() == expected[1]
    with quiet():
        model.load_adapter(folders[1], "other")
    model.set_adapter("other")
    model.eval()
    assert grown.again() == expected[2]
    model.merge_adapter()  # Writes through .data; what is merged rounds differently, so it counts as new weights.
    version = grown.backend.weight_version
    grown.again()
    assert grown.backend.weight_version == version + 1
    with pytest.raises(BackendError, match="merged into its weights: call unmerge_adapter first"):
        grown.backend.use_adapter(None)
    model.unmerge_adapter()
    grown.backend.use_adapter(None)
    grown.again()
    model.delete_adapter("other")
    grown.release()


def test_every_state_of_an_adapter_counts(policy: LlamaForCausalLM) -> None:
    model: Any = get_peft_model(deepcopy(policy), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    version = WeightVersion(model)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj

    def changes(act: Callable[[], Any]) -> bool:
        act()
        return version.look(model)

    assert not changes(lambda: None)
    assert changes(lambda: layer.set_scale("default", 0.5))
    assert changes(lambda: layer.set_scale("default", 1.0))
    assert changes(lambda: model.add_adapter("more", LoraConfig(target_modules=["q_proj"])))
    assert changes(lambda: model.set_adapter("more"))
    assert changes(lambda: model.set_adapter("default"))
    assert changes(lambda: model.base_model.disable_adapter_layers())
    assert changes(lambda: model.base_model.enable_adapter_layers())
    assert changes(lambda: model.merge_adapter())
    assert changes(lambda: model.unmerge_adapter())
    assert changes(lambda: model.delete_adapter("more"))
    assert changes(lambda: setattr(layer.lora_A["default"].weight, "data", torch.ones(8, 32)))
    assert changes(lambda: setattr(layer.lora_A["default"], "weight", torch.nn.Parameter(torch.ones(8, 32))))
    assert not changes(lambda: None)


def test_an_adapter_that_cannot_be_worn_leaves_the_one_in_use(
    grown: Grown, policy: LlamaForCausalLM, tmp_path: Path
) -> None:
    first, bad = adapter(policy, tmp_path / "first", 1), Path(adapter(policy, tmp_path / "bad", 2))
    config = json.loads((bad / "adapter_config.json").read_text())
    grown.backend.use_adapter(first)
    before, version = grown.again(), grown.backend.weight_version
    with pytest.raises(ConfigError, match="there is no adapter at"):
        grown.backend.use_adapter(str(tmp_path / "nothing"))
    for changes in ({"r": 8}, {"target_modules": ["q_proj"]}, {"target_modules": ["c_attn"]}, {"peft_type": "ODD"}):
        (bad / "adapter_config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(BackendError, match="does not fit"):
            grown.backend.use_adapter(str(bad))
        assert grown.again() == before
    (bad / "adapter_model.safetensors").write_bytes(b"12345678")
    with pytest.raises(BackendError, match="damaged"):
        grown.backend.use_adapter(str(bad))
    assert grown.again() == before
    assert grown.backend.weight_version == version
    grown.backend.use_adapter(None)
    assert grown.again() == grown.before
    grown.release()


@pytest.mark.parametrize("from_folder", [False, True])
@pytest.mark.parametrize("wears", [False, True])
def test_updated_weights_write_the_next_steps(
    grown: Grown,
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    from_folder: bool,
    wears: bool,
) -> None:
    folder = adapter(policy, tmp_path / "adapter", 1, modules_to_save=["norm"])
    torch.manual_seed(7)
    source = LlamaForCausalLM(policy.config).eval()
    if wears:
        grown.backend.use_adapter(folder)
    if from_folder:
        source.save_pretrained(tmp_path / "new", max_shard_size="20KB")
        grown.backend.update_weights(tmp_path / "new")
    else:
        grown.backend.update_weights(source.state_dict())
    after = grown.again()
    assert after != grown.before
    assert after == written(backend(worn(source, folder) if wears else source, tokenizer), grown.wishes)
    grown.release()


def test_weights_that_do_not_fit_change_nothing(grown: Grown, tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = model_of(grown)
    fitting = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    name = "model.layers.0.mlp.up_proj.weight"
    wrong: list[tuple[dict[str, torch.Tensor], str]] = [
        ({**fitting, "odd": torch.zeros(1)}, "the model has no weight odd"),
        ({key: fitting[key] for key in fitting if key != name}, f"{name} is missing"),
        ({**fitting, name: torch.zeros(64, 31)}, rf"{name} is \[64, 31\], in the model \[64, 32\]"),
        ({**fitting, name: torch.zeros(64, 32, dtype=torch.int8)}, f"{name} does not hold floating-point"),
    ]
    for tensors, reason in wrong:
        with pytest.raises(BackendError, match=f"cannot update the weights: .*{reason}"):
            grown.backend.update_weights(tensors)
        save_file(
            {key: tensor.clone() for key, tensor in tensors.items() if key != "lm_head.weight"},
            tmp_path / "model.safetensors",
        )
        with pytest.raises(BackendError, match=f"cannot update the weights: .*{reason}"):
            grown.backend.update_weights(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(PalmetteError, match="a pickle"):
        grown.backend.update_weights(tmp_path)
    assert grown.backend.weight_version == 0
    assert grown.again() == grown.before


@pytest.mark.parametrize("budget_tokens", [None, 60])
def test_trees_of_several_versions_return_all_they_hold(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, budget_tokens: int | None
) -> None:
    model = deepcopy(policy)
    budget = None if budget_tokens is None else budget_tokens * backend(model, tokenizer).kv_bytes_per_token
    shared = backend(model, tokenizer, kv_bytes=budget)
    paths = {0: prompt("12*12-(7-3)")}
    for wave in range(4):
        parents = list(paths)[-3:]
        wishes = [
            Expansion("q", parent, paths[parent], 10 * wave + child, 8, 100 * wave + 10 * parent + child + 1)
            for parent in parents
            for child in range(2)
        ]
        steps = shared.expand(wishes)
        assert [step.tokens for step in steps] == written(backend(deepcopy(model), tokenizer), wishes)
        paths.update({wish.node or 0: (*wish.prefix, *step.tokens) for wish, step in zip(wishes, steps, strict=True)})
        shared.tree.cache.check_integrity()
        with torch.no_grad():
            model.model.layers[wave % 2].self_attn.v_proj.weight.mul_(-1.1)
    shared.release("q", list(paths))
    shared.tree.cache.check_integrity()
    assert shared.tree.cache.pool.taken_bytes == 0


@pytest.mark.parametrize("kind", [LikelihoodScorer, PrmScorer])
def test_scores_follow_the_weights_of_their_model(
    policy: LlamaForCausalLM, reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast, kind: Any
) -> None:
    model: Any = deepcopy(policy if kind is LikelihoodScorer else reward)
    scorer = kind(model, tokenizer, batch_rows=8)
    question: tuple[Message, ...] = ({"role": "user", "content": "(3+4)*2-5"},)
    first = [Candidate(question, ("7*2-5\n",), finished=False)]
    second = [Candidate(question, ("7*2-5\n", f"{digit}-5\n"), finished=False) for digit in range(8)]
    scorer.score(first)
    before = scorer.score(second)
    assert scorer.score(second) == before
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.neg_()
    after = scorer.score(second)
    assert after != before
    assert after == kind(deepcopy(model), tokenizer, batch_rows=8).score(second)
    scorer.tree.cache.check_integrity()
