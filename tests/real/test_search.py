"""Whole searches with the shipped seedlings, through the command line as users run it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.events import FILE_NAME, NodeRecord, QuestionFinished, WaveDone, read_events

SEARCH = [sys.executable, "-m", "palmette", "search"]
UNHURRIED = ["--set", "task.verify_seconds=3600"]  # An answer that takes long to judge on a busy machine is judged.
SMALL = ["--questions", "6", "--width", "4", "--seed", "3", *UNHURRIED]


def searched(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([*SEARCH, "--json", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


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
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, searched(*SMALL, "--out", str(folder))


def test_a_run_says_what_it_found_and_leaves_a_report(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, values = whole
    assert values["results"]["questions"] == 6
    assert set(values["results"]["votes"]) == {"best", "majority", "weighted"}
    assert Path(values["report"]).read_text().startswith("<!doctype html>")
    first = next(read_events(folder))
    assert first.config["search"]["width"] == 4  # type: ignore[union-attr]


def test_batch_sizes_and_neighbors_do_not_change_a_tree(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    folder = tmp_path / "run"
    narrow = ["--set", "policy.batch_rows=3", "--set", "reward.batch_rows=5", "--set", "search.questions_in_flight=2"]
    values = searched(*SMALL, *narrow, "--out", str(folder))
    assert trees(folder) == trees(whole[0])
    assert values["results"] == whole[1]["results"]


def test_another_seed_gives_other_trees(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    searched("--questions", "1", "--width", "4", "--seed", "4", "--out", str(tmp_path / "run"))
    first = next(iter(trees(tmp_path / "run")))
    assert trees(tmp_path / "run")[first] != trees(whole[0])[first]


# The command itself, which says when the first question's answer is written and then waits for a line: it cannot end
# before the test has done what it wants to do in the middle of a run. A shell that starts tests in the background lets
# them inherit an ignored SIGINT, a terminal does not.
PAUSING = """
import signal, sys
from palmette.cli import main
from palmette.events import EventLog, QuestionFinished

signal.signal(signal.SIGINT, signal.default_int_handler)
write = EventLog.write

def write_and_wait(log, event):
    write(log, event)
    if isinstance(event, QuestionFinished):
        print("one is finished", flush=True)
        sys.stdin.readline()

EventLog.write = write_and_wait
main()
"""


def paused(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the same search, two questions at a time; return it where it waits with one question finished."""
    arguments = ["search", *SMALL, "--set", "search.questions_in_flight=2", "--out", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSING, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    if not any(line == b"one is finished\n" for line in process.stdout):
        raise AssertionError(process.stderr.read().decode())
    return process


def finished(folder: Path) -> list[str]:
    return [event.question for event in read_events(folder) if isinstance(event, QuestionFinished)]


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_continues_without_repeating_or_losing_a_question(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]], stop: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with paused(folder) as process:
        process.send_signal(stop)
        _, said = process.communicate()
    if stop == signal.SIGINT:
        assert b"continue with: palmette search --resume" in said
    else:
        assert process.returncode == -stop
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
    with paused(folder) as first:
        second = subprocess.run([*SEARCH, "--resume", str(folder)], capture_output=True, text=True, check=False)
        first.kill()
    assert second.returncode == 1
    assert "is being written by another process" in second.stderr


def test_damage_in_the_middle_is_named_and_nothing_is_overwritten(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    lines = (whole[0] / FILE_NAME).read_bytes().splitlines(keepends=True)
    lines[2] = b"{]\n"
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines))
    done = subprocess.run([*SEARCH, "--resume", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "line 3: damaged" in done.stderr
    assert (tmp_path / FILE_NAME).read_bytes() == b"".join(lines)


def test_a_full_disk_ends_the_run_with_one_line_and_the_rest_can_be_resumed(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    folder = tmp_path / "run"
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
from palmette.cli import main
sys.argv = ["palmette", "search", *{SMALL!r}, "--out", {str(folder)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Finished questions are kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert searched("--resume", str(folder))["results"] == whole[1]["results"]


@pytest.mark.parametrize("strategy", ["beam", "dvts", "rebase"])
def test_strategies_that_go_by_scores_repeat_whatever_the_batch(tmp_path: Path, strategy: str) -> None:
    same = ["--strategy", strategy, "--questions", "3", "--width", "9", "--set", "task.grade=2", *UNHURRIED]
    narrow = ["--set", "policy.batch_rows=5", "--set", "reward.batch_rows=3", "--set", "search.questions_in_flight=2"]
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
    arguments = [*SEARCH, "--task", str(task), "--width", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
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
    done = subprocess.run([*SEARCH, "--resume", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the task has changed" in done.stderr


def test_a_run_can_be_resumed_from_another_folder(tmp_path: Path) -> None:
    rows(tmp_path / "task.jsonl", "1+1")
    here = [*SEARCH, "--json", "--task", "task.jsonl", "--width", "1", "--out", "run"]
    subprocess.run(here, cwd=tmp_path, capture_output=True, check=True)
    assert searched("--resume", str(tmp_path / "run"))["results"]["questions"] == 1


def test_a_folder_taken_while_the_models_were_loading_is_not_written_into(tmp_path: Path) -> None:
    from palmette.config import load_config
    from palmette.errors import RunError
    from palmette.run import new_folder, start_search

    config = load_config(None, {"out": str(tmp_path / "run"), "task.questions": 1, "search.width": 1})
    first, second = new_folder(config), new_folder(config)
    start_search(first, config, lambda done, total: None)
    before = (first / FILE_NAME).read_bytes()
    with pytest.raises(RunError, match="taken by another process"):
        start_search(second, config, lambda done, total: None)
    assert (first / FILE_NAME).read_bytes() == before


def test_a_search_without_a_reward_model_votes_by_majority_alone(tmp_path: Path) -> None:
    values = searched("--reward", "none", "--questions", "2", "--width", "4", "--out", str(tmp_path / "run"))
    votes = values["results"]["votes"]
    assert votes["weighted"] == votes["majority"]
    assert values["cost"]["reward_calls"] == 0


def test_a_missing_model_and_a_damaged_one_are_told_apart(tmp_path: Path) -> None:
    from palmette.zoo.resolve import resolve

    def failed(model: Path) -> tuple[int, str]:
        arguments = ["--policy", str(model), "--out", str(tmp_path / "run"), "--questions", "1"]
        done = subprocess.run([*SEARCH, *arguments], capture_output=True, text=True, check=False)
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


def test_the_real_model_answers_generated_questions(tmp_path: Path) -> None:
    values = searched(
        "--policy", "smollm2-135m", "--task", "rg:chain_sum", "--questions", "1", "--width", "2",
        "--set", "search.total_tokens=24", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert values["results"]["questions"] == 1
    assert values["results"]["generated_tokens"] > 0
