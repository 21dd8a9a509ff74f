"""What the README shows is run as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("palmette ")]


def test_the_python_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *progress, share = done.stdout.split()
    assert progress == ["0/2", "1/2", "2/2"]
    assert 0 <= float(share) <= 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_flags_that_exist(command: str) -> None:
    _, name, *words = shlex.split(command.split("#")[0])
    listed = subprocess.run(
        [sys.executable, "-m", "palmette", name, "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "200", "PATH": "/usr/bin"},
    ).stdout  # fmt: skip
    assert all(word in listed for word in words if word.startswith("--"))


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 5
