"""Reward models on real servers score as they do in this process: small models of published kinds, random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.score import tree_scorer, values
from tests.reward_models import (
    Any_,
    llama_tokenizer,
    newline_tokenizer,
    qwen_prm_tokenizer,
    save,
    shepherd_tokenizer,
    tiny,
)
from tests.server.plain import server
from tests.server.scored import scores

SIZE = {"hidden_size": 128, "intermediate_size": 128, "initializer_range": 0.15}
"""Heads of 64 numbers: servers have no smaller ones."""


def token_prm(folder: Path) -> str:
    tokenizer = shepherd_tokenizer()
    return save(Any_.MistralForCausalLM(tiny("MistralConfig", tokenizer, **SIZE)), tokenizer, folder)


def scalar(folder: Path) -> str:
    tokenizer = llama_tokenizer()
    config = tiny("LlamaConfig", tokenizer, num_labels=1, **SIZE)
    return save(Any_.LlamaForSequenceClassification(config), tokenizer, folder)


def process_reward_model(folder: Path) -> str:
    tokenizer = qwen_prm_tokenizer()
    layers = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
    head = {f"score.{name}": tensor for name, tensor in layers.state_dict().items()}
    body = Any_.Qwen2ForTokenClassification(tiny("Qwen2Config", tokenizer, **SIZE))
    return save(body, tokenizer, folder, head, architectures=["Qwen2ForProcessRewardModel"])


def trl(folder: Path) -> str:
    tokenizer = newline_tokenizer(None)
    return save(
        Any_.Qwen2ForTokenClassification(tiny("Qwen2Config", tokenizer, num_labels=2, **SIZE)), tokenizer, folder
    )


# SGLang's scalar reward model is in test_sglang.py, where one is served.
KINDS: dict[str, tuple[Any, str | None, dict[str, tuple[str, ...]]]] = {
    "token": (token_prm, "math-shepherd", {"vllm": (), "sglang": ()}),
    "scalar": (scalar, None, {"vllm": ("--runner", "pooling")}),
    "process": (process_reward_model, "qwen2.5-math-prm", {"vllm": ("--runner", "pooling")}),
    "trl": (trl, "trl", {"vllm": ("--runner", "pooling")}),
}


@pytest.fixture(autouse=True)
def _without_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the numbers themselves: rounded ones are equal, or a step of the grid apart."""
    monkeypatch.setattr(values, "GRID", 2.0**-24)
    monkeypatch.setattr(tree_scorer, "NARROW", 0.0)


@pytest.mark.parametrize(("kind", "engine"), [(kind, engine) for kind, made in KINDS.items() for engine in made[2]])
def test_scores_on_a_real_server_are_those_of_this_process(kind: str, engine: str, tmp_path: Path) -> None:
    make, profile, flags = KINDS[kind]
    torch.manual_seed(0)
    model = make(tmp_path / "model")
    ways: list[dict[str, Any]] = [{"reward.score": "head"} if profile is None else {"reward.profile": profile}]
    if kind == "token":
        ways.append({"reward.score": "likelihood"})
    local = [scores({"reward.model": model, **way}) for way in ways]
    with server(engine, model, tmp_path / "log", *flags[engine]) as address:
        for way, expected in zip(ways, local, strict=True):
            served = {"reward.backend": engine, "reward.address": address, "reward.model": model}
            assert scores({**served, **way}) == pytest.approx(expected, abs=1e-3)
    assert len({round(score, 3) for score in local[0]}) > 5
