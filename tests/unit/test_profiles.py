"""Profiles of reward models: which one a model has, what a file of one's own may say, what a config decides."""

from pathlib import Path
from typing import Any

import pytest

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.profiles.find import profile_for, read_profile, shipped_profiles
from palmette.tasks.load import load_task

MINE = """
layout: text
prompt: "Q: {question}\\nA: "
tag: " [PRM]"
between: "\\n"
read: {kind: value, weights: v_head.summary}
"""


def test_every_published_model_has_one_profile() -> None:
    assert {name: profile.models for name, profile in shipped_profiles().items()} == {
        "er-prm": ["Llama3.1-Math-PRM"],
        "llemma-rebase": ["Llemma-reward-model"],
        "math-shepherd": ["math-shepherd-mistral-7b-prm"],
        "qwen2.5-math-prm": ["Qwen2.5-Math-PRM-7B", "Qwen2.5-Math-PRM-72B", "Qwen2.5-Math-7B-PRM800K"],
        "rlhflow": ["Llama3.1-8B-PRM-Deepseek-Data", "Llama3.1-8B-PRM-Mistral-Data"],
        "skywork-o1-prm": ["Skywork-o1-Open-PRM-Qwen-2.5-1.5B", "Skywork-o1-Open-PRM-Qwen-2.5-7B"],
        "trl": ["Qwen2-0.5B-Reward-Math-Sheperd", "Qwen2.5-Math-7B-Instruct-PRM800K-SHARP-PRM"],
    }


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        ("Qwen/Qwen2.5-Math-PRM-7B", "qwen2.5-math-prm"),
        ("qwen/qwen2.5-math-prm-7b", "qwen2.5-math-prm"),
        ("models/Qwen2.5-Math-PRM-7B/", "qwen2.5-math-prm"),
        ("hub/models--RLHFlow--Llama3.1-8B-PRM-Mistral-Data/snapshots/0a1b", "rlhflow"),
        ("Qwen2.5-Math-PRM-7B/mine", None),
        ("Qwen/Qwen2.5-Math-7B", None),
        ("seedling-prm", None),
    ],
)
def test_a_model_is_known_by_the_last_part_of_its_name(model: str, profile: str | None) -> None:
    assert profile_for(model) == profile


def decided(**settings: Any) -> tuple[str, str | None]:
    reward = load_config(None, {f"reward.{key}": value for key, value in settings.items()}).reward
    return reward.score, reward.profile


def test_a_published_model_is_read_by_its_profile_unless_told_else(tmp_path: Path) -> None:
    published = "peiyi9979/math-shepherd-mistral-7b-prm"
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    assert decided(model=published) == ("profile", "math-shepherd")
    assert decided(model=published, profile="rlhflow") == ("profile", "rlhflow")
    assert decided(model=published, score="head") == ("head", None)
    assert decided(model="x/y") == ("head", None)
    assert decided(model="x/y", profile=str(mine)) == ("profile", str(mine))
    assert decided(model=None, profile="trl")[1] == "trl"
    # What was decided is decided anew where another model is laid over it.
    config = load_config(None, {"reward.model": published})
    assert load_config(config, {"reward.model": "x/y"}).reward.score == "head"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "x/y", "score": "profile"}, "none is known for x/y: set reward.profile to a file or one of er-prm"),
        ({"model": "x/y", "profile": "math-sheperd"}, "Did you mean 'math-shepherd'?"),
        ({"model": "x/y", "profile": "head", "score": "head"}, "reward.profile is not used by reward.score 'head'"),
    ],
)  # fmt: skip
def test_a_profile_that_is_missing_misspelled_or_unused_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decided(**settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("layout: text", "layout: tex"), "layout: Input should be 'text', 'chat' or 'turns'"),
        (("kind: value", "kind: scalar"), "read: Input tag 'scalar' found using 'kind' does not match"),
        (("{question}", "question"), "prompt has to contain {question} once"),
        (("between:", "system: Be strict.\nbetween:"), "system is for the layouts chat and turns"),
        (("between:", "bos: required\nbetween:"), None),
        (("layout: text", "layout: chat\nbos: required"), "bos is for the layout text"),
        (("layout: text", "layout: turns"), "between is for the layouts text and chat"),
        (("tag:", "tagg:"), "tag: Field required; tagg: Extra inputs are not permitted"),
        (('" [PRM]"', "[PRM]"), "tag: Input should be a valid string"),
        ((MINE, "- 1"), "this file holds a list"),
        ((MINE, "{"), "not valid YAML"),
    ],
)
def test_a_file_that_is_no_profile_is_told_in_one_line(
    changed: tuple[str, str], said: str | None, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE.replace(*changed))
    if said is None:
        assert read_profile(str(mine)).bos == "required"
        return
    with pytest.raises(ConfigError) as refused:
        read_profile(str(mine))
    assert said in str(refused.value) and str(mine) in str(refused.value) and "\n" not in str(refused.value)


def test_questions_of_files_and_generators_know_their_text_alone(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "How many hens?", "answer": "2"}\n{"prompt": "1+1?", "answer": "2"}\n')
    config = load_config(None, {"task.name": str(rows), "policy.model": "x/y"})
    first, second = load_task(config.task).questions
    assert first.text == "How many hens?" and first.messages[-1]["content"].startswith("How many hens?\n\nReason")
    assert second.text is None
    assert [
        load_task(load_config(None, {"task.name": name, "task.questions": 1}).task).questions[0].text is not None
        for name in ("ladder", "words")
    ] == [True, True]
