"""What the page about training shows is run as it stands there; the statistics it explains are those of a run."""

import re
import shlex
from pathlib import Path

import pytest

from palmette.event_log import read_events
from palmette.events import Evaluated, RowsTested, UpdateDone
from tests.command import palmette, python
from tests.pages import ROOT, blocks, commands, python_script

pytestmark = pytest.mark.real

PAGE = "docs/training.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and what its commands have made of them."""
    folder = tmp_path_factory.mktemp("training")
    for block in blocks(PAGE):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    for command in commands(PAGE):
        done = palmette(*shlex.split(command)[1:], cwd=folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if "--dry-run" in command:
            assert "advantage" in done.stdout and "one update:" in done.stdout
    return folder


def updates(folder: Path) -> list[UpdateDone]:
    return [event for event in read_events(folder) if isinstance(event, UpdateDone)]


def test_the_first_run_goes_on_and_is_reported(folder: Path) -> None:
    events = list(read_events(folder / "first"))
    assert [event.update for event in events if isinstance(event, UpdateDone)] == [1, 2, 3]
    assert [event.update for event in events if isinstance(event, Evaluated)] == [0, 1, 2, 3]
    assert (folder / "first" / "report.html").is_file()
    assert list((folder / "first" / "tensorboard").iterdir())
    assert all(event.numbers["learning_rate"] == 1e-4 for event in updates(folder / "first"))


def test_an_adapter_is_merged_into_a_policy_as_the_page_does_it(folder: Path) -> None:
    (folder / "merge.py").write_text(python_script(PAGE), encoding="utf-8")
    merged = python(folder / "merge.py", cwd=folder)
    assert merged.returncode == 0, merged.stderr
    asked = ("--reward", "none", "--set", "task.format=ladder", "--questions", "1", "--width", "2")
    done = palmette("search", "--policy", "merged", *asked, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_every_statistic_of_a_run_is_explained_and_no_other(folder: Path) -> None:
    section = (ROOT / PAGE).read_text(encoding="utf-8").partition("## Statistics")[2].partition("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)
    }
    recorded = {name for run in ("first", "own", "ppo") for event in updates(folder / run) for name in event.numbers}
    assert {re.sub(r"^(reward|metric) .*", r"\1 NAME", name) for name in recorded} == named


def test_numbers_that_a_reward_function_logs_are_statistics(folder: Path) -> None:
    (done,) = updates(folder / "own")
    assert done.numbers["metric equations"] > 0


def test_rewards_of_all_three_kinds_add_up_by_their_weights(folder: Path) -> None:
    (done,) = updates(folder / "own")
    parts = [done.numbers[f"reward rewards.py:{name}"] for name in ("right", "compute_score", "short")]
    assert done.numbers["reward"] == pytest.approx(parts[0] + 0.2 * parts[1] + 0.5 * parts[2])
    assert parts[2] < 0
    assert done.numbers["failed_rewards"] == 0
    for sample in done.samples:
        assert sample.parts["rewards.py:short"] == pytest.approx(-len(sample.text) / 1000)


def test_the_tree_run_learns_from_steps(folder: Path) -> None:
    (done,) = updates(folder / "tree")
    assert done.numbers["responses"] == 4 * 16
    assert done.numbers["steps"] == 1


def test_runs_on_rows_learn_test_and_explain_their_statistics(folder: Path) -> None:
    section = (ROOT / PAGE).read_text(encoding="utf-8").partition("| statistic |")[2].partition("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)
    }
    for run, measured in (("tuned", {"loss"}), ("judge", {"loss", "accuracy", "right_share"})):
        assert [event.update for event in updates(folder / run)] == [1, 2]
        assert {name for event in updates(folder / run) for name in event.numbers} == named
        tests = [event for event in read_events(folder / run) if isinstance(event, RowsTested)]
        assert [(event.update, event.rows) for event in tests] == [(0, 1), (2, 1)]
        assert all(event.numbers.keys() - {"auc"} == measured for event in tests)
    assert len((folder / "made" / "labels.jsonl").read_text().splitlines()) == 8
