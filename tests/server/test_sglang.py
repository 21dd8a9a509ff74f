"""Searches on a real, unmodified SGLang that palmette starts and stops: a policy and a scalar reward model."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from palmette.event_log import read_events
from palmette.search.summary import summarize
from tests.server.held import check_what_the_cache_holds
from tests.server.scored import scores
from tests.server.started import SEARCH, Up, engine_flags, searched, trees


@pytest.fixture
def scalar(tmp_path: Path) -> Path:
    """The shipped reward model with the head of a sequence classifier, the kind that SGLang serves."""
    from transformers import AutoTokenizer, LlamaForSequenceClassification

    from palmette.zoo.resolve import resolve

    folder = tmp_path / "scalar"
    source = resolve("seedling-prm")
    LlamaForSequenceClassification.from_pretrained(source, num_labels=1).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def test_policy_and_reward_model_start_with_planned_fractions_and_have_the_kv_that_was_planned(
    local: Path, scalar: Path, tmp_path: Path
) -> None:
    flags = engine_flags("sglang", "policy", "reward")
    reward = ["--reward", str(scalar), "--set", "reward.backend=sglang"]
    with Up(*SEARCH, *flags, *reward, "--out", str(tmp_path / "up")) as up:
        assert [*up.addresses] == ["reward", "policy"] and len(up.groups) == 2
        for role, tokens in up.kv.items():
            assert abs(tokens / up.planned_kv[role] - 1) < 0.05
            said = (tmp_path / "up" / "servers" / f"{role}.log").read_text(encoding="utf-8")
            planned = float(re.search(r"--mem-fraction-static ([\d.]+)", said)[1])  # type: ignore[index]
            with urllib.request.urlopen(f"{up.addresses[role]}/server_info") as answer:
                assert json.load(answer)["mem_fraction_static"] == planned
        with urllib.request.urlopen(f"{up.addresses['reward']}/model_info") as answer:
            assert json.load(answer)["is_generation"] is False
        head = {"reward.model": str(scalar), "reward.score": "head"}
        served = {**head, "reward.backend": "sglang", "reward.address": up.addresses["reward"]}
        asked = ["2+3", "(3+4)*2-5"]  # In the only words that the model knows.
        assert scores(served, asked) == pytest.approx(scores(head, asked), abs=1e-3)
        at = ["--set", f"policy.address={up.addresses['policy']}"]
        run = searched(tmp_path / "run", "--backend", "sglang", *at)
        assert trees(run) == trees(local)
        assert (summarize(read_events(run)).server_hit_share or 0) > 0.8  # Every token but the last of each step.
        for strategy in ("ets", "rebase"):
            check_what_the_cache_holds("sglang", up.addresses["policy"], strategy, block_tokens=1)
