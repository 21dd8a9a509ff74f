"""`palmette train` as people call it: what it prints, what it goes on from, what it refuses."""

import json
import signal
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


def test_a_run_that_is_killed_goes_on_from_another_folder_to_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "def length(completions, trainer_state):\n"
        "    if trainer_state.global_step == 1 and (Path(__file__).parent / 'kills').exists():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return [len(completion[0]['content']) for completion in completions]\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "deadly.py").write_text("raise ValueError('another file of that name')\n")
    rewards = ("--set", "train.rewards={'deadly.py:length': 1.0}")
    assert palmette("train", *SMALL, *rewards, "--out", "whole", cwd=tmp_path).returncode == 0
    (tmp_path / "kills").touch()
    killed = palmette("train", *SMALL, *rewards, "--out", "killed", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    (tmp_path / "kills").unlink()
    done = palmette("train", "--resume", "../killed", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert "goes on after update 1" in done.stderr
    for name in ("model.safetensors", "training.safetensors"):
        whole, again = (tmp_path / run / "checkpoints" / "update-00000002" / name for run in ("whole", "killed"))
        assert again.read_bytes() == whole.read_bytes()
    finished = palmette("train", "--resume", "../killed", cwd=tmp_path / "elsewhere")
    assert (finished.returncode, finished.stdout) == (0, done.stdout)
    assert finished.stderr == "../killed is already finished: it has made 2 updates. More --updates go on\n"
