"""A reward model of the zoo on a loopback server: a search has the trees and scores of one in this process."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import palmette
from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.planner.run_plan import planned_memory
from palmette.run.parts import check_names, load_scorer
from palmette.zoo.load import load_reward
from tests.dialects import Manner, serving
from tests.reward_models import llama_tokenizer, save, tiny

QUESTIONS = ["(3+4)*2-5", "2+6"]
FAR = {"reward.backend": "vllm", "reward.address": "http://127.0.0.1:1"}


class RealHead:
    """vLLM's pooling route over the shipped reward model: its output at every token."""

    def __init__(self) -> None:
        self._model, self.tokenizer = load_reward("seedling-prm")
        self._lock = threading.Lock()

    def manner(self) -> Manner:
        return Manner("vllm", model="/models/seedling-prm", tokenizer=self.tokenizer, routes=self.routes)

    def routes(self, path: str, asked: Any) -> tuple[int, Any] | None:
        if path != "/pooling":
            return None
        with self._lock, torch.inference_mode():
            rows = [self._model(torch.tensor([row])).logits[0].tolist() for row in asked["input"]]
        return 200, {"data": [{"index": index, "data": row} for index, row in enumerate(rows)]}


def grown(**settings: Any) -> list[list[tuple[Any, ...]]]:
    told = {key.replace("_", ".", 1): value for key, value in settings.items()}
    with palmette.Searcher("seedling", "seedling-prm", strategy="rebase", width=4, settings=told) as searcher:
        results = searcher.search(QUESTIONS)
    return [[(node.parent, node.tokens, node.score) for node in result.tree.nodes[1:]] for result in results]


def test_a_search_scored_on_a_server_is_the_one_scored_in_this_process() -> None:
    local = grown()
    assert len({score for nodes in local for *_, score in nodes}) > 2
    head = RealHead()
    with serving(head.manner()) as [server]:
        served = grown(reward_backend="vllm", reward_address=server.address)
        assert [path for path, _ in server.asked].count("/pooling") > 2
    assert served == local


def test_a_reward_model_on_a_server_takes_no_memory_here() -> None:
    local, served = (
        planned_memory(load_config(None, {"reward.model": "seedling-prm", "search.strategy": "rebase", **more}))
        for more in ({}, FAR)
    )
    assert 0 < served.by_phase["search"] < local.by_phase["search"]
    assert "score" in local.by_phase and "score" not in served.by_phase


def test_settings_that_do_not_fit_a_reward_model_on_servers_are_one_line() -> None:
    def told(**changed: Any) -> str:
        own = {key.replace("__", "."): value for key, value in changed.items()}
        with pytest.raises(ConfigError) as caught:
            check_names(load_config(None, {"reward.model": "seedling-prm", **own}), clusters=False)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    far = {"reward__backend": "vllm", "reward__address": "http://127.0.0.1:1"}
    assert told(reward__backend="vllm") == "reward.backend vllm needs reward.address, such as http://127.0.0.1:8001"
    assert told(reward__address="http://a").startswith("reward.address is set, and reward.backend is local: set that")
    assert told(**far, reward__adapter="x").startswith("reward.adapter is x, and the reward model is on a server")
    assert told(**far, reward__kv_budget="1GiB").startswith("reward.kv_budget is 1GiB, and the reward model is on a")
    assert told(**far, reward__profile="skywork-o1-prm") == (
        "reward.profile skywork-o1-prm reads the head v_head.summary, which no stock server loads: set reward.backend "
        "to local"
    )
    gain = {"reward__model": "seedling-ripe", "reward__small_model": "seedling", "reward__score": "likelihood_gain"}
    assert "reward.small_address is not set" in told(**far, **gain)


def test_a_profile_of_another_tokenizer_is_refused_before_a_server_is_asked(tmp_path: Path) -> None:
    import transformers

    tokenizer = llama_tokenizer()
    model: Any = transformers.LlamaForCausalLM(tiny("LlamaConfig", tokenizer))
    folder = save(model, tokenizer, tmp_path / "other")
    config = load_config(None, {"reward.model": folder, "reward.profile": "math-shepherd", **FAR})
    with pytest.raises(
        ConfigError, match="^reward.profile does not fit the tokenizer of .*: the tag ' ки' is 5 tokens"
    ):
        load_scorer(config.reward)


def test_a_sequence_classifier_is_read_in_this_process_as_a_token_classifier_is(tmp_path: Path) -> None:
    import transformers

    from palmette.score.scorer import Candidate

    tokenizer = llama_tokenizer()
    torch.manual_seed(1)
    model: Any = transformers.LlamaForSequenceClassification(tiny("LlamaConfig", tokenizer, num_labels=1)).eval()
    scorer: Any = load_scorer(load_config(None, {"reward.model": save(model, tokenizer, tmp_path / "it")}).reward)
    candidate = Candidate(({"role": "user", "content": "2+3"},), ("2+3=5\n",), finished=False)
    [row] = scorer._rows.of([candidate])
    with torch.inference_mode():
        expected = float(model(torch.tensor([row.tokens])).logits[0, 0].sigmoid())
    assert scorer.score([candidate]) == pytest.approx([expected], abs=0.005)  # Rounded to 1/64 of a logit.
