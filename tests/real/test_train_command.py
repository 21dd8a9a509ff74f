"""`palmette train` as people call it: what it prints, what it goes on from, what it refuses."""

import json
from pathlib import Path

import pytest

from tests.command import palmette

pytestmark = pytest.mark.real

SMALL = (
    "--policy", "seedling", "--task", "ladder", "--width", "4", "--updates", "2", "--set", "task.grade=1",
    "--set", "task.questions=20", "--set", "search.total_tokens=60", "--set", "train.questions=2",
    "--set", "train.learning_rate=1e-3", "--set", "train.checkpoint_every=1",
)  # fmt: skip


def test_what_reward_functions_print_does_not_get_into_the_json(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "print('imported')\ndef loud(solution):\n    print('called')\n    return len(solution)\n"
    )
    rewards = ("--set", "train.rewards={'loud.py:loud': 1.0}")
    done = palmette("train", *SMALL, *rewards, "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["policy"] == "run/checkpoints/update-00000002"
    assert "imported" in done.stderr
    assert "called" in done.stderr
