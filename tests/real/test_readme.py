"""What the README and the page about searching show is run as it stands there."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.command import palmette, python

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("search.md", "plan.md", "words.md"))]
BLOCKS = [block for page in PAGES for block in re.findall(r"```\n(.*?)```", page, re.DOTALL)]
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("palmette ")]


def test_the_first_python_example_gives_an_answer_with_its_tree(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 5
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    done = python(tmp_path / "example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *tree = done.stdout.splitlines()
    assert first == "9 prompt"
    assert sum("[finished]" in line for line in tree) == 16


@cache
def help_of(name: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        done = palmette(name, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_every_command_has_flags_that_exist(command: str) -> None:
    _, name, *words = shlex.split(command.split("#")[0])
    listed = re.findall(r"--[\w-]+", help_of(name))
    assert [word for word in words if word.startswith("--") and word not in listed] == []


def test_files_that_do_not_exist_are_marked_as_placeholders() -> None:
    for command in COMMANDS:
        for word in shlex.split(command.split("#")[0]):
            is_path = "/" in word or word.endswith((".yaml", ".jsonl"))
            is_hub_name = re.fullmatch(r"[\w-]+/[\w.-]+", word) is not None
            assert not is_path or is_hub_name or word.split(".")[0].isupper(), command


def test_every_page_that_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\((docs/[^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 5
