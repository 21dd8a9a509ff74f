"""Whole searches with tiny reward models of published kinds, through the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from palmette.event_log import read_events
from palmette.events import WaveDone
from tests.command import palmette
from tests.reward_models import llama_tokenizer, newline_tokenizer, save, shepherd_tokenizer, tiny

SEARCH = ("search", "--json", "--strategy", "rebase", "--questions", "2", "--width", "4")
UNHURRIED = ("--set", "task.verify_seconds=3600")
Any_: Any = transformers


def scores_of(folder: Path) -> list[float | None]:
    return [node.score for event in read_events(folder) if isinstance(event, WaveDone) for node in event.nodes]


@pytest.mark.parametrize("name", ["math-shepherd-mistral-7b-prm", "Skywork-o1-Open-PRM-Qwen-2.5-1.5B"])
def test_a_search_is_led_by_a_published_reward_model(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if name.startswith("math"):
        tokenizer, head = shepherd_tokenizer(), None
        model = Any_.MistralForCausalLM(tiny("MistralConfig", tokenizer))
    else:
        tokenizer, head = newline_tokenizer(), {"v_head.summary.weight": torch.randn(1, 16)}
        model = Any_.Qwen2ForCausalLM(tiny("Qwen2Config", tokenizer))
    folder, out = save(model, tokenizer, tmp_path / name, head), tmp_path / "run"
    done = palmette(*SEARCH, *UNHURRIED, "--reward", folder, "--out", str(out))
    assert done.returncode == 0, done.stderr
    config = next(read_events(out)).config  # type: ignore[union-attr]
    assert config["reward"]["score"] == "profile" and config["reward"]["profile"] is not None
    found = scores_of(out)
    assert all(score is not None and 0 < score < 1 for score in found) and len(set(found)) > 4
    again = palmette(
        *SEARCH, *UNHURRIED, "--reward", folder, "--out", str(tmp_path / "again"), "--set", "reward.batch_rows=1"
    )
    assert again.returncode == 0, again.stderr
    assert scores_of(tmp_path / "again") == found
    assert json.loads(done.stdout)["results"]["questions"] == 2


def test_chunks_of_a_fixed_length_are_scored_by_two_models(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {
        "reward.score": "likelihood_gain", "reward.small_model": "seedling", "search.aggregate": "last",
        "search.step_tokens": "4", "task.step_end": ";;",
    }  # fmt: skip
    told = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = palmette(*SEARCH, *UNHURRIED, "--reward", "seedling-ripe", *told, "--out", str(out))
    assert done.returncode == 0, done.stderr
    nodes = [node for event in read_events(out) if isinstance(event, WaveDone) for node in event.nodes]
    assert {len(node.tokens) for node in nodes if not node.finished} == {4}
    assert any(node.finished for node in nodes) and len({node.score for node in nodes}) > 1


def test_a_tokenizer_that_does_not_fit_ends_a_run_with_one_line(tmp_path: Path) -> None:
    tokenizer = llama_tokenizer()
    folder = save(
        Any_.MistralForCausalLM(tiny("MistralConfig", tokenizer)), tokenizer, tmp_path / "math-shepherd-mistral-7b-prm"
    )
    done = palmette(*SEARCH, "--reward", folder, "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "the tag ' ки' is 5 tokens, not one" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
