"""A policy of the zoo on servers: the tokenizer is this machine's, steps are those of the policy in this process."""

import gc
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import palmette
from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError
from palmette.planner.run_plan import kv_token_bytes, planned_memory, refuse_what_cannot_fit
from palmette.zoo.load import load_policy, load_tokenizer_of_served
from tests.command import palmette as command
from tests.dialects import Manner, serving
from tests.fake_policy import FakeModel

QUESTIONS = ["(3+4)*2-5", "2+6", "7*3-(1+2)"]


class Greedy(FakeModel):
    """A real model that takes the likeliest token, one at a time."""

    def __init__(self) -> None:
        self._model, self.tokenizer = load_policy("seedling")
        super().__init__(tokenizer=self.tokenizer)
        self._drawn: dict[tuple[int, ...], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def draw(self, seed: int, prompt: Sequence[int], written: Sequence[int]) -> tuple[int, float]:
        path = (*prompt, *written)
        with self._lock, torch.inference_mode():
            if path not in self._drawn:
                logprobs_V = torch.log_softmax(self._model(torch.tensor([path])).logits[0, -1], dim=-1)
                self._drawn[path] = int(logprobs_V.argmax()), float(logprobs_V.max())
            return self._drawn[path]


@pytest.fixture(scope="module")
def greedy() -> Greedy:
    return Greedy()


def grown(**settings: Any) -> list[list[tuple[Any, ...]]]:
    told = {"policy.temperature": 0.0, **{key.replace("_", ".", 1): value for key, value in settings.items()}}
    with palmette.Searcher("seedling", None, width=2, settings=told) as searcher:
        results = searcher.search(QUESTIONS)
    return [
        [(node.parent, node.tokens, node.text, node.finished) for node in result.tree.nodes[1:]] for result in results
    ]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_greedy_search_over_a_server_equals_the_one_in_this_process(dialect: str, greedy: Greedy) -> None:
    manner = Manner(dialect, model="/models/zoo/seedling", tokenizer=greedy.tokenizer, fake=greedy, context_tokens=2048)
    local = grown()
    assert all(any(finished for *_, finished in nodes) for nodes in local)
    with serving(manner) as [server]:
        assert grown(policy_backend=dialect, policy_address=server.address, policy_served_model=manner.model) == local
    gc.collect()
    assert "palmette servers" not in {thread.name for thread in threading.enumerate()}


def test_a_run_goes_on_with_another_server_of_the_same_model(greedy: Greedy, tmp_path: Path) -> None:
    manner = Manner("vllm", model="seedling", tokenizer=greedy.tokenizer, fake=greedy, context_tokens=2048)

    def searcher(address: str) -> palmette.Searcher:
        told = {"policy.temperature": 0.0, "policy.backend": "vllm", "policy.address": address}
        return palmette.Searcher("seedling", None, width=2, settings=told)

    with serving(manner, manner) as [first, second]:
        with searcher(first.address) as begins:
            next(begins.stream(QUESTIONS, out=tmp_path / "run"))
        with searcher(second.address) as goes_on:
            assert len(list(goes_on.resume(tmp_path / "run", QUESTIONS))) == len(QUESTIONS) - 1
        assert second.writes


def test_end_tokens_are_those_of_the_generation_config() -> None:
    tokenizer, named, folder = load_tokenizer_of_served("seedling")
    model, _ = load_policy("seedling")
    assert model.generation_config is not None
    assert named == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert (folder / "config.json").is_file()


def test_a_policy_on_a_server_that_has_no_name_in_the_zoo_is_refused_before_a_server_is_asked() -> None:
    with pytest.raises(ConfigError, match="there is no model"):
        grown(policy_backend="vllm", policy_address="http://127.0.0.1:1", policy_model="seedlin")


def test_the_command_searches_on_a_server_says_what_it_lacks_and_resumes(greedy: Greedy, tmp_path: Path) -> None:
    manner = Manner("openai", model="seedling", tokenizer=greedy.tokenizer, fake=greedy, context_tokens=2048)
    out = str(tmp_path / "run")
    with serving(manner) as [server]:
        flags = ["--set", "policy.backend=openai", "--set", f"policy.address={server.address}/v1", "--out", out]
        small = ["--questions", "2", "--width", "2", "--reward", "none", "--set", "policy.temperature=0"]
        small += ["--set", "search.total_tokens=32"]
        done = command("search", *flags, *small)
        assert done.returncode == 0, done.stderr
        assert f"{server.address} returns no token ids: the text of its steps is tokenized here\n" in done.stderr
        assert command("search", "--resume", out).returncode == 0
    done = command("search", *flags[:-1], str(tmp_path / "other"), *small)
    assert done.returncode == 4 and not (tmp_path / "other").exists()
    assert f"{server.address} cannot be reached: " in done.stderr.splitlines()[-1]


def test_a_policy_on_a_server_takes_no_memory_here() -> None:
    small = {"memory.devices": "cpu:1MiB", "reward.model": None}
    with pytest.raises(BudgetError):
        refuse_what_cannot_fit(load_config(None, small))
    served = load_config(None, {**small, "policy.backend": "vllm", "policy.address": "http://127.0.0.1:1"})
    refuse_what_cannot_fit(served)
    assert not planned_memory(served).by_phase
    assert kv_token_bytes(served.policy) > 1
