"""What the README shows is run as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
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


@cache
def help_of(name: str) -> str:
    command = [sys.executable, "-m", "palmette", name, "--help"]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_flags_that_exist(command: str) -> None:
    _, name, *words = shlex.split(command.split("#")[0])
    listed = re.findall(r"--[\w-]+", help_of(name))
    assert [word for word in words if word.startswith("--") and word not in listed] == []


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 5
