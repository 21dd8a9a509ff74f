"""Parameter counts against the counts that the models' publishers state, and against files."""

import json
from pathlib import Path
from typing import Any

import pytest

from palmette.errors import BackendError, ConfigError
from palmette.planner.models.find_shape import adapter_bytes, find_shape, known_configs
from palmette.planner.models.shape import read_shape
from palmette.zoo.catalog import ENTRIES
from palmette.zoo.folder import read_header

PUBLISHED = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b-it": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-it": 999_885_952,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/phi-4": 14_659_507_200,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V3": 671_026_419_200 - 58 * 256,  # Without the routers' biases.
    "allenai/OLMo-2-1124-7B": 7_298_617_344,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "zai-org/GLM-4-9B-0414": 9_400_279_040,
    "tiiuae/falcon-7b": 6_921_720_704,
    "microsoft/phi-2": 2_779_683_840,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-12b-it": 12_187_325_040,
    "google/gemma-3-27b-it": 27_432_406_640,
    "google-bert/bert-base-uncased": 109_482_240,
    "sentence-transformers/all-mpnet-base-v2": 109_486_464,
    "BAAI/bge-large-en-v1.5": 335_141_888,
    "BAAI/bge-m3": 567_754_752,
    "sentence-transformers/all-MiniLM-L6-v2": 22_713_216,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_known_model_has_the_parameters_its_publisher_states(name: str, parameters: int) -> None:
    assert find_shape(name).parameters == parameters


@pytest.mark.parametrize("name", ["seedling", "seedling-prm", "seedling-words", "seedling-words-prm", "minilm"])
def test_the_count_from_a_config_is_the_count_in_the_weight_file(name: str) -> None:
    weights = ENTRIES[name].weights_path()
    if weights is None:
        pytest.skip(f"{name} is not installed")
    assert find_shape(name).parameters == read_header(weights).parameters


def test_the_kv_of_a_token_is_two_vectors_for_each_key_head_of_each_layer() -> None:
    assert find_shape("mistralai/Mistral-7B-v0.1").kv_bytes_per_token("bfloat16") == 2 * 32 * 8 * 128 * 2 == 131_072
    assert find_shape("smollm2-135m").kv_bytes_per_token("float32") == 2 * 30 * 3 * 64 * 4 == 46_080
    assert find_shape("EleutherAI/llemma_7b").kv_bytes_per_token("float16") == 524_288


def test_llemma_has_the_sixteen_tokens_that_code_llama_adds_to_llama_2() -> None:
    llama, llemma = find_shape("meta-llama/Llama-2-7b-hf"), find_shape("EleutherAI/llemma_7b")
    assert llemma.parameters == llama.parameters + 2 * 16 * 4096


def test_lora_counts_two_thin_matrices_for_each_target() -> None:
    shape = find_shape("smollm2-135m")
    assert shape.lora_parameters(8, ("q_proj",)) == 30 * 8 * (576 + 576)
    assert shape.lora_parameters(8, ("k_proj", "down_proj")) == 30 * 8 * ((576 + 192) + (1536 + 576))
    assert shape.lora_parameters(1) == 30 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))


def test_process_reward_models_count_their_own_heads() -> None:
    body = find_shape("Qwen/Qwen2.5-Math-7B").parameters - 152_064 * 3584
    assert find_shape("Qwen/Qwen2.5-Math-PRM-7B").parameters == body + 3584 * 3584 + 3584 + 3584 * 2 + 2
    assert find_shape("Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B").parameters == body + 3584 + 1


def test_every_known_model_can_be_sized() -> None:
    assert len(known_configs()) >= 100
    for name in known_configs():
        shape = find_shape(name)
        assert shape.weight_bytes("bfloat16") > 0 and shape.kv_bytes_per_token("bfloat16") > 0


def test_a_hub_name_is_found_whatever_its_case_and_by_its_last_part() -> None:
    assert find_shape("qwen/QWEN2.5-7b").parameters == find_shape("Qwen2.5-7B").parameters


def test_a_folder_wins_and_is_read_from_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        (Path(ENTRIES["seedling"].weights_path() or "").parent / "config.json").read_text()
    )
    assert find_shape(str(tmp_path)).parameters == find_shape("seedling").parameters


def test_what_cannot_be_sized_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Qwen/Qwen2.5-7C' is not known.*Did you mean 'qwen/qwen2.5-7b'"):
        find_shape("Qwen/Qwen2.5-7C")
    with pytest.raises(
        ConfigError, match=r"Give a local folder with its config.json, .*: hf download gpt2 config.json"
    ):
        find_shape("gpt2")
    with pytest.raises(BackendError, match="its model_type is 'mamba', and sizes are known for llama"):
        read_shape("x", {"model_type": "mamba"})
    with pytest.raises(BackendError, match="has no usable 'num_hidden_layers'"):
        read_shape("x", {"model_type": "llama", "hidden_size": 8, "vocab_size": 8})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 0}))
    with pytest.raises(BackendError, match="has no usable 'hidden_size'"):
        find_shape(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-30B", "Qwen/Qwen2.5-8B", "Qwen/Qwen2-7B", "Qwen2.5-VL-8B",
     "google/gemma-2-9b-pt", "meta-llama/Llama-3.4-8B", "mistralai/Mistral-7B-v0.4",
     "unsloth/Qwen2.5-7B"],
)  # fmt: skip
def test_another_model_is_never_taken_for_a_misspelling(name: str) -> None:
    with pytest.raises(ConfigError, match="is not known") as caught:
        find_shape(name)
    assert "Did you mean" not in str(caught.value)
    assert f"hf download {name} config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Qwen/Qwen2.5-7B-Instuct", "qwen/qwen2.5-7b-instruct"),
        ("Qwen/Qwen25-7B", "qwen/qwen2.5-7b"),
        ("Qwne/Qwen2.5-7B", "qwen/qwen2.5-7b"),
        ("Mistral-7B_v0.1", "mistral-7b-v0.1"),
        ("smolm2-135m", "smollm2-135m"),
    ],
)
def test_a_misspelled_model_is_answered_with_the_one_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        find_shape(name)
    find_shape(meant)


@pytest.mark.parametrize("name", ["some-org/some-model", "bare-name"])
def test_a_model_in_the_hub_s_cache_is_found_by_its_id(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    config = Path(ENTRIES["seedling"].weights_path() or "").parent / "config.json"
    (snapshot / "config.json").write_text(config.read_text())
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_shape(name).parameters == find_shape("seedling").parameters


def test_an_adapter_takes_the_bytes_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x" * 77)
    assert (adapter_bytes(str(tmp_path)), adapter_bytes(None), adapter_bytes(str(tmp_path / "none"))) == (77, 0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        {"head_dim": -16},
        {"head_dim": 1e400},
        {"num_key_value_heads": -2},
        {"max_position_embeddings": -5},
        {"max_position_embeddings": "x"},
        {"hidden_size": 10**400},
        {"num_attention_heads": 128},
        {"vocab_size": True},
    ],
)
def test_a_config_with_impossible_numbers_is_refused_by_the_key(damage: dict[str, object]) -> None:
    whole = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 1000,
        "num_attention_heads": 4, "intermediate_size": 128,
    }  # fmt: skip
    assert read_shape("m", whole).head_width == 16
    with pytest.raises(BackendError, match=f"no usable '{next(iter(damage))}'"):
        read_shape("m", {**whole, **damage})


def test_kv_is_counted_by_the_kind_of_layer() -> None:
    latent = find_shape("deepseek-ai/DeepSeek-V3")  # One latent vector of 512 and 64 rotated numbers for all heads.
    assert latent.kv_bytes_per_token("bfloat16") == 61 * (512 + 64) * 2
    window = find_shape("openai/gpt-oss-20b")  # Every second layer sees 128 tokens.
    assert window.kv_bytes_per_token("bfloat16") == 24 * 2 * 8 * 64 * 2
    assert window.kv_path_bytes(10_000, "bfloat16") == 12 * 1024 * 2 * (10_000 + 128)
    assert window.kv_path_bytes(10_000, "bfloat16", ahead_tokens=2048) == 12 * 1024 * 2 * (10_000 + 128 + 2048)
    assert window.kv_path_bytes(100, "bfloat16") == 100 * window.kv_bytes_per_token("bfloat16")
    gemma = find_shape("google/gemma-3-4b-it")  # Every sixth layer sees all.
    assert [(part.layers, part.window) for part in gemma.kv] == [(5, None), (29, 1024)]


def test_awq_and_gptq_count_packed_weights_scales_zeros_and_indices() -> None:
    plain = find_shape("Qwen/Qwen2.5-7B-Instruct")
    linear = sum(own.parameters for own in plain.linear)
    rest = 2 * (plain.parameters - linear)
    groups = sum(own.count * own.inputs // 128 * own.outputs for own in plain.linear)
    awq = linear // 2 + groups * 2 + groups // 2
    assert find_shape("Qwen/Qwen2.5-7B-Instruct-AWQ").weight_bytes("float16") == rest + awq == 5_570_747_392
    indices = sum(own.count * own.inputs * 4 for own in plain.linear)
    assert find_shape("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4").weight_bytes("float16") == rest + awq + indices


LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 1000, "num_attention_heads": 4,
    "intermediate_size": 512, "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
LINEAR = 2 * (4 * 256 * 256 + 3 * 256 * 512)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": True}}}},
         4 + 16 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 + 32 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": 256,
          "modules_to_not_convert": ["model.layers.0.mlp"]}, None),
    ],
)  # fmt: skip
def test_other_quantized_checkpoints_count_their_bits(config: dict[str, Any], bits: float | None) -> None:
    plain = read_shape("m", LLAMA).weight_bytes("bfloat16")
    found = read_shape("m", {**LLAMA, "quantization_config": config}).weight_bytes("bfloat16")
    if bits is not None:
        assert found == plain - 2 * LINEAR + LINEAR * bits / 8
    else:  # Attention alone: a part that is left out in one layer is counted as left out in all.
        attention = 2 * 4 * 256 * 256
        assert found == plain - 2 * attention + attention + 2 * 4 * (256 * 2 + 256 + 256 * 4)


def test_an_unknown_quantization_is_refused_by_its_name() -> None:
    with pytest.raises(BackendError, match="the method 'quip', and sizes are known for awq, gptq, fp8"):
        read_shape("m", {**LLAMA, "quantization_config": {"quant_method": "quip"}})


@pytest.mark.parametrize(
    ("architecture", "head", "outputs"),
    [
        ("LlamaForSequenceClassification", 256 * 1, 1),
        ("Qwen2ForRewardModel", 256 * 256 + 256 + 256 + 1, 1),
        ("Qwen2ForProcessRewardModel", 256 * 256 + 256 + 2 * 256 + 2, 2),
        ("InternLM2ForRewardModel", 256, 1),
        ("LlamaForCausalLM", 0, 1000),
        ("LlamaModel", 0, 256),
    ],
)
def test_the_architecture_decides_the_head(architecture: str, head: int, outputs: int) -> None:
    values = {**LLAMA, "architectures": [architecture]}
    if "Sequence" in architecture:
        values["num_labels"] = 1
    shape = read_shape("m", values)
    assert (shape.parts["head"], shape.outputs) == (head, outputs)
