"""Every bad input: one line, its exit code, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import palmette as preloaded


def palmette(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "palmette", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def complaint(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the one line an error is said in."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("palmette: ")]
    assert (done.returncode, len(lines)) == (code, 1), done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--width", "0"], 2, "search.width cannot be 0: input should be greater than or equal to 1"),
        (["--strategy", "rebas"], 2, "Did you mean 'rebase'?"),
        (["--strategy", "mcts"], 2, "There are beam, best_of_n, dvts, espalier, ets, fixed_tree, rebase, shepherd."),
        (["--set", "search.widht=3"], 2, "unknown key 'search.widht'. Did you mean 'search.width'?"),
        (["--set", "nonsense"], 2, "--set nonsense: write it as KEY=VALUE"),
        (["--config", "missing.yaml"], 2, "missing.yaml: cannot read the config"),
        (["missing.yaml"], 2, "missing.yaml: cannot read the config"),
        (["a.yaml", "--config", "b.yaml"], 2, "a.yaml and --config b.yaml are two files for one run: give one of them"),
        (["--resume", "full", "a.yaml"], 2, "--resume continues a run with the config it has: leave a.yaml out"),
        (["--task", "lader"], 2, "Did you mean 'ladder'?"),
        (["--task", "empty.jsonl"], 2, "empty.jsonl: the file has no rows"),
        (["--task", "broken.jsonl"], 2, "broken.jsonl, line 17: not valid JSON"),
        (["--task", "rg:nothing_like_it"], 2, "reasoning-gym has no generator 'nothing_like_it'"),
        (["--out", "full"], 2, "full is not empty. Choose a new folder"),
        (["--out", "empty.jsonl"], 2, "out: cannot make the folder empty.jsonl: File exists"),
        (["--out", "/proc/nowhere"], 2, "out: cannot make the folder /proc/nowhere"),
        (["--set", 'out="a\\0b"'], 2, "is no name of a folder"),
        (["--questions", "1" + "0" * 30], 2, "task.questions cannot be so large a number"),
        (["--policy", "~nosuchuser/x"], 2, "there is no model folder at"),
        (["--reward", "none", "--strategy", "beam"], 2, "goes by scores, and there is no reward model"),
        (["--resume", "full"], 1, "full is no run folder"),
        (["--resume", "full", "--width", "3"], 2, "--resume continues a run with the config it has: leave"),
    ],
)  # fmt: skip
def test_bad_input_to_search_is_one_clear_line(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "empty.jsonl").touch()
    row = json.dumps({"question": "1+1?", "answer": "2"})
    (tmp_path / "broken.jsonl").write_text("\n".join([row] * 16 + [row[:-3]] + [row] * 3))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert said in complaint(preloaded("search", *arguments, cwd=tmp_path), code)


@pytest.mark.parametrize("given", [["run.yaml"], ["--config", "run.yaml"]])
@pytest.mark.parametrize("command", ["search", "plan", "sweep", "train", "sft", "train-prm"])
def test_the_file_of_a_run_is_an_argument_of_every_command(tmp_path: Path, command: str, given: list[str]) -> None:
    (tmp_path / "run.yaml").write_text("search: {widht: 3}")
    said = complaint(preloaded(command, *given, cwd=tmp_path), 2)
    assert "run.yaml: unknown key 'search.widht'. Did you mean 'search.width'?" in said


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--model", "no such option: --model. Did you mean --policy?"),
        ("--lr", "no such option: --lr. Did you mean --set train.learning_rate=VALUE?"),
        ("--beta", "no such option: --beta. Did you mean --set train.kl_weight=VALUE?"),
        ("--max-norm", "no such option: --max-norm. Did you mean --set train.max_norm=VALUE?"),
        ("--nonsense", "no such option: --nonsense. `palmette train --help` lists what there is"),
    ],
)
def test_a_flag_of_another_library_is_told_as_ours(tmp_path: Path, flag: str, said: str) -> None:
    assert said in complaint(preloaded("train", flag, "1", cwd=tmp_path), 2)


def test_a_task_that_cannot_be_read_leaves_no_run_folder_behind(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    palmette("search", "--task", "empty.jsonl", "--out", "run", cwd=tmp_path)
    assert not (tmp_path / "run").exists()


def test_an_error_cannot_draw_on_the_terminal(tmp_path: Path) -> None:
    said = complaint(palmette("search", "--task", "a\x1b[31m\nb.jsonl", cwd=tmp_path), 2)
    assert "\x1b" not in said
    assert "a [31m b.jsonl" in said


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = palmette("--debug", "search", "--width", "0", cwd=tmp_path)
    assert "Traceback" in done.stderr


def test_flags_that_do_not_exist_are_usage_errors(tmp_path: Path) -> None:
    assert palmette("search", "--widht", "3", cwd=tmp_path).returncode == 2
    assert palmette("report", cwd=tmp_path).returncode == 2


def test_help_and_version_answer(tmp_path: Path) -> None:
    assert "Makes language models reason better" in palmette("--help").stdout
    assert palmette("--version").stdout.startswith("palmette 0.")


def test_models_are_listed_for_people_and_for_machines() -> None:
    assert "seedling-prm" in palmette("models").stdout
    cards = {card["name"]: card for card in json.loads(palmette("models", "--json").stdout)}
    assert cards["seedling"]["license"] == "Apache-2.0"
    assert 1_000_000 <= cards["seedling"]["parameters"] <= 3_000_000
    assert cards["seedling-prm"]["bytes"] < 12_000_000


ROWS = [
    {"solution": "so 9+9 = 18\n#### 18", "reference": "A: 18"},
    {"solution": "The answer is 17.", "answer": 18},
    {"solution": "no idea", "answer": "18"},
    {"solution": "\\boxed{\\frac{1}{2}}", "answer": "0.5"},
]


def test_grade_counts_the_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    verdicts = [json.loads(line) for line in palmette("grade", str(path), "--json").stdout.splitlines()]
    assert [verdict["outcome"] for verdict in verdicts] == ["correct", "wrong", "unparseable", "correct"]
    table = palmette("grade", str(path)).stdout.split()
    assert table[table.index("correct") + 1] == "2"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: not valid JSON"),
        ('{"answer": "1"}', "line 2: needs 'solution'"),
        ('{"solution": "1"}', "line 2: needs 'reference' or 'answer'"),
    ],
)
def test_grade_refuses_bad_rows_before_it_grades_any(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + row + "\n")
    done = palmette("grade", str(path), "--json")
    assert said in complaint(done, 2)
    assert done.stdout == ""


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    assert "is no run folder" in complaint(palmette("report", str(tmp_path)), 1)


def test_a_full_stdout_is_one_line_too() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "palmette", "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
