"""The package that docs/extend.md shows: written to disk, installed, and used in all three ways."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import palmette, python
from tests.pages import blocks, commands, python_script

PAGE = "docs/extend.md"
NAMES = {
    "strategy": ("keep", "garden.strategies:Keep"),
    "task": ("sums", "garden.tasks:sums"),
    "judge": ("close", "garden.judges:close"),
    "scorer": ("arithmetic", "garden.scorers:Arithmetic"),
    "backend": ("textbook", "garden.backends:Textbook"),
    "embedder": ("digits", "garden.embedders:digits"),
}
SEARCHES = [command for command in commands(PAGE) if command.startswith("palmette search")]


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run.yaml, beside a folder `site` into which the page's package is installed."""
    folder = tmp_path_factory.mktemp("garden")
    for block in blocks(PAGE):
        if block.title is not None:
            path = folder / ("run" if block.title == "run.yaml" else "package") / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    target = ["--no-build-isolation", "--target", str(folder / "site"), str(folder / "package")]
    done = subprocess.run([*pip, *target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run_command(garden: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    done = palmette(*arguments, cwd=garden / "run", paths=[garden / "site"])
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done


@pytest.fixture(scope="module")
def searched(garden: Path) -> dict[str, dict[str, Any]]:
    """What each search of the page printed as JSON, with what it said on stderr."""
    values = {}
    for place, command in enumerate(SEARCHES):
        done = run_command(garden, *shlex.split(command)[1:], "--json", "--out", f"runs/{place}")
        values[command] = {**json.loads(done.stdout), "stderr": done.stderr}
    return values


def test_every_kind_is_shown_as_an_object_by_reference_and_by_name() -> None:
    script = python_script(PAGE)
    for kind, (name, reference) in NAMES.items():
        module, _, part = reference.partition(":")
        assert f"from {module} import" in script, kind
        assert re.search(rf"\b{part}\b", script.partition(f"from {module} import")[2].partition("\n")[2]), kind
        for written in (name, reference):
            assert any(re.search(rf"[ =]{re.escape(written)}( |$)", command) for command in SEARCHES), (kind, written)


def test_examples_are_short() -> None:
    for block in blocks(PAGE):
        if block.title is not None and block.title.endswith(".py"):
            assert len([line for line in block.text.splitlines() if line.strip()]) <= 32, block.title


def test_objects_in_python_do_what_the_page_asserts(garden: Path) -> None:
    (garden / "page.py").write_text(python_script(PAGE), encoding="utf-8")
    done = python(garden / "page.py", cwd=garden / "run", paths=[garden / "site"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", SEARCHES)
def test_a_command_of_the_page_searches_and_leaves_a_report(
    garden: Path, searched: dict[str, dict[str, Any]], command: str
) -> None:
    values = searched[command]
    assert values["results"]["questions"] == 2
    assert (garden / "run" / values["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [line for line in values["stderr"].splitlines() if line.startswith("palmette:")] == []


def test_a_name_and_a_reference_find_the_same_part(searched: dict[str, dict[str, Any]]) -> None:
    found: dict[str, list[Any]] = {}
    for command, values in searched.items():
        for name, reference in NAMES.values():
            command = re.sub(rf"(?<=[ =]){name}(?= |$)", reference, command)
        found.setdefault(command, []).append(values["results"])
    several = [results for results in found.values() if len(results) > 1]
    assert len(several) >= len(NAMES)
    assert all(first == second for first, *others in several for second in others)


def test_a_run_says_which_parts_it_used(searched: dict[str, dict[str, Any]], garden: Path) -> None:
    from palmette.event_log import read_events
    from palmette.events import RunStarted

    first = next(read_events(garden / "run" / searched["palmette search run.yaml"]["run"]))
    assert isinstance(first, RunStarted)
    config = first.config
    assert config["policy"]["backend"] == "garden.backends:Textbook"
    assert (config["reward"]["model"], config["reward"]["score"]) == (None, "garden.scorers:Arithmetic")
    assert (config["embedder"]["model"], config["task"]["judge"]) == ("digits", "close")
    assert (config["search"]["strategy"], config["search"]["keep"]) == ("garden.strategies:Keep", 3)


def test_the_parts_decide_what_a_run_finds(searched: dict[str, dict[str, Any]]) -> None:
    book = searched["palmette search --policy textbook --task sums --questions 2 --width 4"]["results"]
    assert book["single"]["outcomes"] == {"wrong": 8}  # The book says 20 or 21, whatever is asked.
    letters = searched["palmette search --task sums --set task.judge=letters --questions 2 --width 4"]["results"]
    assert letters["single"]["outcomes"] == {"unparseable": 8}


def test_plugins_lists_the_parts_with_the_package_they_come_from(garden: Path) -> None:
    listed = json.loads(run_command(garden, "plugins", "--json").stdout)
    own = {(row["kind"], row["name"]): row for row in listed if row["from"] == "palmette-garden"}
    assert set(own) == {(kind, name) for kind, (name, _) in NAMES.items()} | {("judge", "letters")}
    assert own["strategy", "keep"]["settings"] == {
        "keep": {"default": 2, "required": False, "meaning": "leaves that go on"}
    }
    assert own["task", "sums"]["summary"] == "Sums of three numbers below 10; `task.seed` chooses them."
    assert all(row["summary"] for row in listed)
    shown = run_command(garden, "plugins").stdout
    assert all(name in shown for name, _ in NAMES.values())


def test_a_recorded_run_with_parts_of_ones_own_is_resumed_and_evaluated(
    garden: Path, searched: dict[str, dict[str, Any]]
) -> None:
    folder = searched["palmette search run.yaml"]["run"]
    again = json.loads(run_command(garden, "search", "--resume", folder, "--json").stdout)
    assert again["results"] == searched["palmette search run.yaml"]["results"]
    judged = json.loads(run_command(garden, "evaluate", folder, "--json").stdout)
    assert set(judged) == {"last", "min", "mean", "prod"}
