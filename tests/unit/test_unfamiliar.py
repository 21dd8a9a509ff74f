"""What a run tells about a policy that is asked another task than the one it was trained on."""

from typing import Any

import pytest

from palmette.config import load_config
from palmette.run.search import unfamiliar

PLAIN = {"task.name": "words", "task.grade": 3, "task.generator": {"plain": True}}


@pytest.mark.parametrize(
    ("policy", "task", "told"),
    [
        (
            "seedling-words",
            {},
            "words in plain questions of grades 1 and 2 only: --task words --set task.grade=1",
        ),
        ("sapling", {"task.name": "words"}, "--set 'task.generator={plain: true}'"),
        ("seedling", PLAIN, "seedling knows the task ladder only: --task ladder"),
        ("seedling", {"task.name": "rg:chain_sum"}, "--task ladder"),
    ],
)
def test_a_policy_of_one_task_that_is_asked_another_is_told_with_what_it_knows(
    policy: str, task: dict[str, Any], told: str
) -> None:
    (notice,) = unfamiliar(load_config(None, {"policy.model": policy, **task}))
    assert told in notice


@pytest.mark.parametrize(
    ("policy", "task"),
    [
        ("seedling", {}),
        ("seedling-words", PLAIN),
        ("sapling", PLAIN),
        ("smollm2-135m", {"task.name": "words"}),
        ("seedling", {"task.name": "questions.jsonl"}),
        ("smollm2-135m", {"policy.adapter": "tuned"}),
    ],
)
def test_nothing_is_told_of_a_policy_that_is_asked_what_it_knows_or_knows_more(
    policy: str, task: dict[str, Any]
) -> None:
    assert list(unfamiliar(load_config(None, {"policy.model": policy, **task}))) == []
