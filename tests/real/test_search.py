"""Whole searches with the shipped seedlings, through the command line as users run it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.event_log import FILE_NAME, read_events
from palmette.events import NodeRecord, QuestionFinished, WaveDone
from tests.command import Command, palmette

UNHURRIED = ["--set", "task.verify_seconds=3600"]  # An answer that takes long to judge on a busy machine is judged.
SMALL = ["--questions", "6", "--width", "4", "--seed", "3", *UNHURRIED]


def values_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def searched(*arguments: str) -> dict[str, Any]:
    return values_of(palmette("search", "--json", *arguments))


def trees(folder: Path) -> dict[str, list[tuple[int, int, tuple[int, ...], bool]]]:
    found: dict[str, list[NodeRecord]] = {}
    for event in read_events(folder):
        if isinstance(event, WaveDone):
            if event.wave == 0:
                found[event.question] = []
            found[event.question] += event.nodes
    return {name: [(n.id, n.parent, n.tokens, n.finished) for n in nodes] for name, nodes in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Search as users do: from nothing, and with more than one thread."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "palmette", "search", "--json", *SMALL, "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    return folder, values_of(subprocess.run(command, env=environment, capture_output=True, text=True, check=False))


def test_a_run_says_what_it_found_and_leaves_a_report(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, values = whole
    assert values["results"]["questions"] == 6
    assert set(values["results"]["votes"]) == {"best", "majority", "weighted"}
    assert Path(values["report"]).read_text().startswith("<!doctype html>")
    first = next(read_events(folder))
    assert first.config["search"]["width"] == 4  # type: ignore[union-attr]


def test_batch_sizes_neighbors_and_drafts_do_not_change_a_tree(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    folder = tmp_path / "run"
    narrow = ["--set", "policy.batch_rows=3", "--set", "reward.batch_rows=5", "--set", "search.questions_in_flight=2"]
    narrow += ["--set", "policy.drafts=off"]
    values = searched(*SMALL, *narrow, "--out", str(folder))
    assert trees(folder) == trees(whole[0])
    assert values["results"] == whole[1]["results"]


def test_another_seed_gives_other_trees(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    searched("--questions", "1", "--width", "4", "--seed", "4", "--out", str(tmp_path / "run"))
    first = next(iter(trees(tmp_path / "run")))
    assert trees(tmp_path / "run")[first] != trees(whole[0])[first]


TWO_AT_A_TIME = ["--set", "search.questions_in_flight=2"]


def finished(folder: Path) -> list[str]:
    return [event.question for event in read_events(folder) if isinstance(event, QuestionFinished)]


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_continues_without_repeating_or_losing_a_question(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]], stop: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with Command("search", *SMALL, *TWO_AT_A_TIME, "--out", str(folder), pauses=True) as command:
        command.wait_for_pause()
        command.send_signal(stop)
        done = command.end()
    if stop == signal.SIGINT:
        assert done.returncode == 130 and f"continue with: palmette search --resume {folder}" in done.stderr
    else:
        assert done.returncode == -stop
    done_before = finished(folder)
    assert len(done_before) == 1
    values = searched("--resume", str(folder))
    assert finished(folder)[: len(done_before)] == done_before
    assert sorted(finished(folder)) == sorted(set(finished(folder)))
    assert values["results"] == whole[1]["results"]
    assert trees(folder) == trees(whole[0])
    again = searched("--resume", str(folder))
    assert again["results"] == values["results"]


def test_a_second_process_is_refused_while_the_first_works(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Command("search", *SMALL, *TWO_AT_A_TIME, "--out", str(folder), pauses=True) as first:
        first.wait_for_pause()
        second = palmette("search", "--resume", str(folder))
    assert second.returncode == 1
    assert "is being written by another process" in second.stderr


def test_damage_in_the_middle_is_named_and_nothing_is_overwritten(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    lines = (whole[0] / FILE_NAME).read_bytes().splitlines(keepends=True)
    lines[2] = b"{]\n"
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines))
    done = palmette("search", "--resume", str(tmp_path))
    assert done.returncode == 1
    assert "line 3: damaged" in done.stderr
    assert (tmp_path / FILE_NAME).read_bytes() == b"".join(lines)


def test_a_full_disk_ends_the_run_with_one_line_and_the_rest_can_be_resumed(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    folder = tmp_path / "run"
    done = palmette("search", *SMALL, "--out", str(folder), file_bytes=8_000)
    assert done.returncode == 1, done.stderr
    assert "What it holds is kept: free disk space and go on with --resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert searched("--resume", str(folder))["results"] == whole[1]["results"]


@pytest.mark.parametrize("strategy", ["beam", "dvts", "rebase", "fixed_tree"])
def test_strategies_that_go_by_waves_repeat_whatever_the_batch_and_without_drafts(
    tmp_path: Path, strategy: str
) -> None:
    same = ["--strategy", strategy, "--questions", "3", "--width", "9", "--set", "task.grade=2", *UNHURRIED]
    same += ["--set", "search.branches=[3,3]"]
    narrow = ["--set", "policy.batch_rows=5", "--set", "reward.batch_rows=3", "--set", "search.questions_in_flight=2"]
    narrow += ["--set", "policy.drafts=off"]
    values = searched(*same, "--out", str(tmp_path / "wide"))
    again = searched(*same, *narrow, "--out", str(tmp_path / "narrow"))
    assert trees(tmp_path / "wide") == trees(tmp_path / "narrow")
    assert again["results"] == values["results"]
    assert values["results"]["peak_kv_tokens"] < values["results"]["peak_separate_kv_tokens"]


def rows(path: Path, *contents: str) -> Path:
    path.write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": c}], "answer": "1"}) + "\n" for c in contents)
    )
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1+" * 1200 + "1", "question 2 has 2403 tokens, the policy takes 2048: leave it out"),
        (
            "1+" * 900 + "1",
            "may grow by search.total_tokens 1024, the policy takes 2048: set search.total_tokens to 245",
        ),
        ("1+1<eos>2", "a question holds '<eos>', a control token of the model"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_before_the_run_begins(
    tmp_path: Path, content: str, said: str
) -> None:
    task = rows(tmp_path / "task.jsonl", "1+1", content, "2+2")
    done = palmette("search", "--task", str(task), "--width", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_task_that_changed_in_any_message_is_not_resumed(tmp_path: Path) -> None:
    def chat(system: str) -> None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "1+1"}]
        (tmp_path / "task.jsonl").write_text(json.dumps({"messages": messages, "answer": "2"}) + "\n")

    folder = tmp_path / "run"
    chat("one")
    searched("--task", str(tmp_path / "task.jsonl"), "--width", "1", "--out", str(folder))
    chat("two")
    done = palmette("search", "--resume", str(folder))
    assert done.returncode == 1
    assert "the task has changed" in done.stderr


def test_a_run_can_be_resumed_from_another_folder(tmp_path: Path) -> None:
    rows(tmp_path / "task.jsonl", "1+1")
    done = palmette("search", "--task", "task.jsonl", "--width", "1", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert searched("--resume", str(tmp_path / "run"))["results"]["questions"] == 1


def test_a_folder_taken_while_the_models_were_loading_is_not_written_into(tmp_path: Path) -> None:
    from palmette.api import Searcher
    from palmette.errors import RunError
    from palmette.run.parts import build_parts
    from palmette.run.search import make_meter, search_into
    from palmette.tasks.load import load_task

    searcher = Searcher(width=1, settings={"task.questions": 1})
    task = load_task(searcher.config.task)
    searcher.search(task, out=tmp_path / "run")
    before = (tmp_path / "run" / FILE_NAME).read_bytes()
    with make_meter(searcher.config) as meter, pytest.raises(RunError, match="taken by another process"):
        next(search_into(tmp_path / "run", searcher.config, build_parts(searcher.config), task, meter, is_new=True))
    assert (tmp_path / "run" / FILE_NAME).read_bytes() == before


def test_a_search_without_a_reward_model_votes_by_majority_alone(tmp_path: Path) -> None:
    values = searched("--reward", "none", "--questions", "2", "--width", "4", "--out", str(tmp_path / "run"))
    votes = values["results"]["votes"]
    assert votes["weighted"] == votes["majority"]
    assert values["cost"]["reward_calls"] == 0


def test_a_missing_model_and_a_damaged_one_are_told_apart(tmp_path: Path) -> None:
    from palmette.zoo.resolve import resolve

    def failed(model: Path) -> tuple[int, str]:
        done = palmette("search", "--policy", str(model), "--out", str(tmp_path / "run"), "--questions", "1")
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("palmette: ")]
        return done.returncode, line

    code, line = failed(tmp_path / "nowhere")
    assert code == 2
    assert "there is no model folder at" in line
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in Path(resolve("seedling")).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, line = failed(copy)
    assert code == 4
    assert "model.safetensors is damaged" in line
