"""The declared tensors and KV caches of every family against transformers' own models on the meta device."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError
from palmette.planner.models.families import FAMILIES
from palmette.planner.models.heads import head_tensors
from palmette.planner.models.shape import read_shape, tower_tensors
from palmette.planner.models.tensors import KvLayers, class_defaults, read_decoder
from palmette.planner.models.towers import TEXT_FAMILIES, TOWERS
from tests.model_defaults import FILE, declared_keys, written

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # In GPTBigCode.

SMALL: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 96, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 176, "max_position_embeddings": 512, "n_embd": 96, "n_layer": 8, "n_head": 6, "ffn_dim": 176,
    "n_positions": 512, "d_model": 96, "n_layers": 8, "n_heads": 6, "max_seq_len": 512, "word_embed_proj_dim": 96,
    "moe_intermediate_size": 56, "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8,
    "n_shared_experts": 2, "moe_k": 3, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 72,
    "shared_intermediate_size": 40, "intermediate_size_mlp": 136, "q_lora_rank": 24, "kv_lora_rank": 40,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "n_group": 1, "topk_group": 1,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "helium": {"head_dim": 16}, "gptj": {"rotary_dim": 8}, "mpt": {"max_seq_len": 512},
    "codegen": {"rotary_dim": 8, "n_head": 8, "num_attention_heads": 8},
    "exaone_moe": {"num_shared_experts": 2}, "hunyuan_v1_moe": {"moe_topk": 2},
}  # fmt: skip

NO_DEFAULT = ("ministral", "nemotron", "hunyuan_v1_dense", "hunyuan_v1_moe", "dots1")
"""transformers cannot build a model of their own default config."""

DECODERS = [
    family for family in FAMILIES if family not in TEXT_FAMILIES.values() or family in ("gemma3_text", "mistral")
]
"""Those that are a language model of their own, not only the text part of another."""


def small(family: str, **settings: Any) -> Any:
    """Return a config of a family with small sizes, all different, and no ids beyond the vocabulary."""
    whole = AutoConfig.for_model(family)
    known = set(whole.to_dict()) | set(getattr(whole, "attribute_map", {}))
    own = {key: value for key, value in {**SMALL, **OWN.get(family, {}), **settings}.items() if key in known}
    if FAMILIES[family].kv != "2*k":
        own["num_key_value_heads"] = own["num_attention_heads"]
    elif "head_dim" in known:
        own.setdefault("head_dim", 20)
    ids = {key: 0 for key in ("pad_token_id", "bos_token_id", "eos_token_id") if key in known}
    return AutoConfig.for_model(family, **{**ids, **own})


def tensors_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def declared_tensors(family: str, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    decoder = read_decoder(FAMILIES[family], values, class_defaults()[family])
    head, _ = head_tensors(FAMILIES[family].head, values, decoder.numbers, as_encoder=False)
    found = {tensor.name: tensor.sizes for tensor in (*decoder.outside, *head)}
    for layer, kind in enumerate(decoder.sparse):
        found |= {tensor.name.format(layer): tensor.sizes for tensor in decoder.layers[kind]}
    return found


def on_meta(config: Any) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def check(family: str, config: Any) -> None:
    values = config.to_dict()
    model = on_meta(config)
    own = tensors_of(model)
    assert declared_tensors(family, values) == own
    shape = read_shape("small", values)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("family", DECODERS)
def test_a_family_has_the_declared_tensors_and_no_other(family: str) -> None:
    check(family, small(family))


@pytest.mark.parametrize("family", [family for family in DECODERS if family not in NO_DEFAULT])
def test_a_family_s_default_config_has_the_declared_tensors(family: str) -> None:
    """It is the config of a published model as a rule: of Mixtral-8x7B, of DeepSeek-V3, of Falcon-7B."""
    check(family, AutoConfig.for_model(family))


def test_the_defaults_are_those_of_transformers_config_classes() -> None:
    assert FILE.read_text(encoding="utf-8") == written(), "python -m tests.model_defaults writes the file anew"


@pytest.mark.parametrize("family", DECODERS)
def test_a_flag_changes_the_declared_tensors_as_it_changes_the_model(family: str) -> None:
    config = small(family)
    flags = [key for key in sorted(declared_keys(family)) if isinstance(config.to_dict().get(key), bool)]
    for flag in flags:
        check(family, small(family, **{flag: not getattr(config, flag)}))


@pytest.mark.parametrize("family", DECODERS)
def test_a_key_that_is_missing_has_the_value_that_transformers_gives_it(family: str) -> None:
    config = small(family)
    values = config.to_dict()
    for key in sorted(declared_keys(family) & set(values)):
        rest = {
            name: value for name, value in values.items() if name not in (key, "model_type", "transformers_version")
        }
        try:
            found = declared_tensors(family, {**rest, "model_type": family})
        except (KeyError, ValueError):
            continue  # Refused: a size without which nothing can be planned.
        try:
            expected = tensors_of(on_meta(AutoConfig.for_model(family, **rest)))
        except Exception:  # noqa: BLE001 - not a config that transformers can build.
            continue
        assert found == expected, key


def cached(config: Any) -> tuple[KvLayers, ...]:
    """Return what one token adds to transformers' own KV cache, layer by layer, full ones first."""
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        cache = model(torch.zeros(1, 1, dtype=torch.long), use_cache=True).past_key_values
    layers: dict[tuple[int, int | None], int] = {}
    for layer in cache.layers:
        own = layer.keys.numel() + layer.values.numel(), getattr(layer, "sliding_window", None)
        layers[own] = layers.get(own, 0) + 1
    return tuple(KvLayers(count, *own) for own, count in sorted(layers.items(), key=lambda item: item[0][1] or 0))


@pytest.mark.parametrize("family", DECODERS)
def test_a_family_s_kv_cache_is_transformers_own_layer_by_layer(family: str) -> None:
    config = small(family)
    found = cached(config)
    decoder = read_decoder(FAMILIES[family], config.to_dict(), class_defaults()[family])
    assert decoder.kv == found


@pytest.mark.parametrize("family", DECODERS)
def test_the_engine_runs_the_families_that_say_so(family: str) -> None:
    torch.manual_seed(0)
    tree = TreeModel(AutoModelForCausalLM.from_config(small(family)).eval())
    if FAMILIES[family].in_process:
        tree.check()
    else:
        with pytest.raises(BackendError):
            tree.check()


def test_at_least_forty_architectures_are_declared() -> None:
    assert len(FAMILIES) + len(TOWERS) >= 40


@pytest.mark.parametrize("whole", TOWERS)
def test_a_model_with_a_vision_tower_has_the_declared_tensors(whole: str) -> None:
    config = AutoConfig.for_model(whole)
    config.text_config.num_hidden_layers = 2
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    values = config.to_dict()
    text = {**values, **values["text_config"], "tie_word_embeddings": values["tie_word_embeddings"]}
    family = TEXT_FAMILIES.get(text["model_type"], text["model_type"])
    found = {name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: sizes
             for name, sizes in declared_tensors(family, text).items()}  # fmt: skip
    for many, tensor in tower_tensors(whole, values, config.text_config.hidden_size):
        found |= {tensor.name.format(index): tensor.sizes for index in range(many)}
    assert found == tensors_of(model)
    assert read_shape("small", values).parameters == sum(weight.numel() for weight in model.parameters())
