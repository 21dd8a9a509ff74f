"""Every script of examples/ is run as its reader would run it, and the notebook by a kernel."""

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import palmette
from tests.command import python
from tests.pages import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook finds the palmette under test, wherever it is started."""
    monkeypatch.setenv("PYTHONPATH", str(Path(palmette.__file__).parents[1]))


def printed_by(name: str, cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    done = python(EXAMPLES / name, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short_and_says_what_it_prints(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    assert "Prints" in (ast.get_docstring(ast.parse(text)) or "")


def test_search_answers_a_question_with_votes_and_a_tree(tmp_path: Path) -> None:
    lines = printed_by("search.py", tmp_path, "7*3+2", "--strategy", "rebase", "--width", "4").stdout.splitlines()
    assert re.fullmatch(r"answer 23, score [01]\.\d{3}", lines[0])
    assert [line.split()[0] for line in lines[1:4]] == ["best", "majority", "weighted"]
    assert lines[4].startswith("votes 23: ")
    written, peak, unshared = map(int, re.findall(r"\d+", lines[5]))
    assert written > 0 and peak < unshared
    assert lines[6] == "prompt"
    assert sum("[finished]" in line for line in lines) == 4


def test_stream_shows_results_as_they_finish_and_records_them(tmp_path: Path) -> None:
    done = printed_by("stream.py", tmp_path, "run")
    *answers, page = done.stdout.splitlines()
    assert sorted(answer.partition(":")[0] for answer in answers) == [f"test-2-0-{place}" for place in range(6)]
    assert all(re.search(r": -?\d+, (correct|wrong)$", answer) for answer in answers)
    assert page == "run/report.html"
    assert (tmp_path / page).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == [f"{done}/6" for done in range(7)]


def test_plan_shows_what_fits_and_what_would(tmp_path: Path) -> None:
    text = printed_by("plan.py", tmp_path).stdout
    assert "policy weights" in text
    assert "two GPUs: fits, peak 22.2 GiB" in text
    assert text.count("sglang.launch_server") == 2
    assert "one GPU: search needs 29.8 GiB of cuda:0, budget is 22.8 GiB" in text
    assert 'would fit: devices "1x33GiB"' in text


def test_a_strategy_of_ones_own_is_shown_beside_rebase(tmp_path: Path) -> None:
    text = printed_by("own_strategy.py", tmp_path).stdout
    found = re.findall(r"(.+): (\d)/8 right, (\d+) tokens, KV (\d+) tokens", text)
    assert [row[0] for row in found] == ["keep 1", "rebase"]
    for _, right, tokens, kv in found:
        assert int(right) >= 4
        assert int(kv) < int(tokens) / 4  # Most of the 8 branches are equal, and equal steps are held once.


def test_rewards_and_scores_of_ones_own_stand_at_leaves_and_steps(tmp_path: Path) -> None:
    text = printed_by("own_reward.py", tmp_path).stdout
    rewards = re.findall(r"leaf \d+: reward ([\d.]+), (\w+)", text)
    assert len(rewards) == 6
    assert all((float(reward) == 1) == (outcome == "correct") for reward, outcome in rewards)
    steps = re.findall(r"─ ([\d.]+) (-?\d+)([-+*])(-?\d+)=(-?\d+)", text)
    assert len(steps) == 24
    for score, left, sign, right, result in steps:
        made = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
        assert float(score) == (1.0 if made == int(result) else 0.05)


def outputs(notebook: Any, kind: str) -> list[str]:
    """Return what the cells printed ("text"), or showed as "text/html"."""
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    if kind == "text":
        return [output.text for output in shown if output.output_type == "stream" and output.name == "stdout"]
    return [output.data[kind] for output in shown if kind in output.get("data", {})]


@pytest.mark.usefixtures("environment")
def test_the_notebook_runs_and_shows_what_it_was_committed_with(tmp_path: Path) -> None:
    committed = nbformat.read(EXAMPLES / "search.ipynb", as_version=4)
    assert (EXAMPLES / "search.ipynb").stat().st_size < 50_000
    assert '"stderr"' not in (EXAMPLES / "search.ipynb").read_text(encoding="utf-8")  # Warnings name places.
    fresh = nbformat.from_dict(committed)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    where = {"metadata": {"path": str(tmp_path)}}
    # It waits for outputs as long as a busy machine needs: by default for 4 seconds.
    nbclient.NotebookClient(
        fresh, resources=where, kernel_name="python3", startup_timeout=3600, iopub_timeout=3600
    ).execute()
    for notebook in (committed, fresh):
        answer, tree = outputs(notebook, "text")
        assert answer == "76 correct\n"
        assert tree.startswith("prompt\n")
        picture, plan = outputs(notebook, "text/html")
        assert "<svg" in picture and "<b>76</b>" in picture
        assert "cuda:0" in plan and "cuda:1" in plan and "<svg" in plan
    assert outputs(fresh, "text")[0] == outputs(committed, "text")[0]
