"""Rows of word problems: what `palmette rows` writes is what `palmette sft` and `palmette train-prm` read."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palmette import load_task
from palmette.commands.app import app
from palmette.commands.rows import write_new
from palmette.errors import ConfigError, RunError
from palmette.settings import TaskSettings
from palmette.tasks.task import read_format
from palmette.tasks.words.check import check_solution
from palmette.tasks.words.reading import read_problem
from palmette.tasks.words.rows import labeled_rows, solution_rows
from palmette.tasks.words.structure import split_of, structure_of
from palmette.train.supervised.rows import read_conversations, read_labeled_steps

FORM = read_format("words", TaskSettings(name="words"))


def rows_of(path: Path, *flags: str) -> None:
    done = CliRunner().invoke(app, ["rows", str(path), *flags])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "flags",
    [(), ("--style", "quoting"), ("--style", "goals"), ("--plain", "--style", "goals"), ("--style", "quoted-goals")],
)
def test_rows_of_solutions_are_read_by_sft_and_are_right(tmp_path: Path, flags: tuple[str, ...]) -> None:
    rows_of(tmp_path / "sft.jsonl", "--rows", "24", "--grades", "1,3,2", "--seed", "4", *flags)
    read = list(read_conversations(tmp_path / "sft.jsonl"))
    assert len(read) == 24
    steps = []
    for row in read:
        problem = read_problem(row.messages[0]["content"])
        checks = check_solution(problem, row.messages[1]["content"])
        assert all(check.verdict == "yes" for check in checks)
        assert split_of(structure_of(problem)) == "train"
        steps.append(sum(check.reason == "follows" for check in checks) - 1)
    assert all(
        steps[place] < 3 and 6 <= steps[place + 1] < 10 and 3 <= steps[place + 2] < 6 for place in range(0, 24, 3)
    )


def test_plain_questions_are_those_of_the_task_and_have_solutions_in_all_wordings(tmp_path: Path) -> None:
    """The task with `generator={"plain": True}` asks in the words that rows of `--plain-questions` ask in."""
    rows_of(tmp_path / "sft.jsonl", "--rows", "40", "--grades", "2", "--seed", "3", "--plain-questions")
    read = list(read_conversations(tmp_path / "sft.jsonl"))
    settings = {"questions": 40, "grade": 2, "split": "train", "seed": 3}
    plain = load_task("words", **settings, generator={"plain": True})
    assert [row.messages[0] for row in read] == [question.messages[0] for question in plain.questions]
    told = load_task("words", **settings)
    assert {question.id for question in told.questions}.isdisjoint(question.id for question in plain.questions)
    asked = [
        len({question.messages[0]["content"].split("\n")[0].split(". ")[-1].split()[0] for question in task.questions})
        for task in (plain, told)
    ]
    assert asked[0] < asked[1]
    beginnings = {line.split()[0] for row in read for line in row.messages[1]["content"].split("\n")}
    rows_of(
        tmp_path / "prm.jsonl", "--kind", "prm", "--rows", "120", "--grades", "2", "--seed", "3", "--plain-questions"
    )
    labeled = read_labeled_steps(tmp_path / "prm.jsonl")
    assert list(dict.fromkeys(row.prompt[0]["content"] for row in labeled)) == [
        question.messages[0]["content"] for question in plain.questions
    ]
    rows_of(tmp_path / "all.jsonl", "--rows", "40", "--grades", "2", "--seed", "3", "--plain")
    fewer = {
        line.split()[0]
        for row in read_conversations(tmp_path / "all.jsonl")
        for line in row.messages[1]["content"].split("\n")
    }
    assert len(fewer) < len(beginnings)


@pytest.mark.parametrize("generator", [{"plan": True}, {"plain": "yes"}])
def test_other_options_of_the_generator_are_refused(generator: dict[str, object]) -> None:
    """With what there is."""
    with pytest.raises(ConfigError, match="has one option, plain, which is true or false"):
        load_task("words", questions=1, generator=generator)


@pytest.mark.parametrize("flags", [(), ("--style", "quoting"), ("--style", "goals"), ("--style", "quoted-goals")])
def test_rows_of_labels_are_read_by_train_prm_and_agree_with_the_checker(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    rows_of(tmp_path / "prm.jsonl", "--kind", "prm", "--rows", "30", "--grades", "2", "--split", "test", *flags)
    read = list(read_labeled_steps(tmp_path / "prm.jsonl"))
    assert len(read) == 30
    for row in read:
        problem = read_problem(row.prompt[0]["content"])
        assert split_of(structure_of(problem)) == "test"
        checks = check_solution(problem, "\n".join(row.steps))
        assert [label == 1 for label in row.labels] == [check.verdict == "yes" for check in checks]
    right = sum(all(row.labels) for row in read)
    assert right == 10


def test_rows_repeat_with_the_seed_in_another_process_and_prompts_can_be_bare(tmp_path: Path) -> None:
    rows_of(tmp_path / "bare.jsonl", "--rows", "3", "--prompt", "{question}")
    written = [json.loads(line) for line in (tmp_path / "bare.jsonl").read_text().splitlines()]
    assert all(row["prompt"][0]["content"].endswith("?") for row in written)
    code = (
        "import json; from itertools import islice; from palmette.tasks.task import Format\n"
        "from palmette.tasks.words.rows import solution_rows\n"
        "for row in islice(solution_rows([4], 'train', 0, Format('{question}', '\\n')), 3): print(json.dumps(row))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == written


def test_several_solutions_to_a_question_differ() -> None:
    rows = list(islice(solution_rows([4], "train", 0, FORM, solutions=8), 8))
    assert len({row["prompt"][0]["content"] for row in rows}) == 1
    assert len({row["completion"] for row in rows}) == 8


def test_solutions_of_a_question_come_together_and_plain_ones_have_one_wording(tmp_path: Path) -> None:
    rows_of(tmp_path / "sft.jsonl", "--rows", "12", "--grades", "3", "--solutions", "4", "--plain")
    read = list(read_conversations(tmp_path / "sft.jsonl"))
    together = [len(list(rows)) for _, rows in groupby(read, key=lambda row: row.messages[0]["content"])]
    assert sum(together) == 12
    assert max(together) == 4
    assert len({row.messages[1]["content"] for row in read}) == 12
    for row in read:
        problem = read_problem(row.messages[0]["content"])
        assert all(check.verdict == "yes" for check in check_solution(problem, row.messages[1]["content"]))
        lines = [line for line in row.messages[1]["content"].split("\n") if "=" in line]
        assert all(line.startswith(("For ", "Together that is ")) for line in lines)


def test_right_and_wrong_steps_are_both_common() -> None:
    labels = [label for row in islice(labeled_rows([4], "train", 0, FORM), 90) for label in row["labels"]]
    assert 0.5 < sum(labels) / len(labels) < 0.9


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--kind", "dpo"], "--kind cannot be 'dpo': choose sft or prm"),
        (["--grades", "1,9"], "--grades cannot be '1,9': give some of 1, 2, 3, 4"),
        (["--grades", ""], "--grades cannot be ''"),
        (["--grades", "²"], "--grades cannot be"),
        (["--split", "dev"], "--split cannot be 'dev': choose train or test"),
        (["--prompt", "no place"], "must contain {question}"),
        (["--prompt", ""], "must contain {question}"),
        (["--kind", "prm", "--plain"], "--plain is for --kind sft"),
        (["--prompt", "{question}\udcff"], "--prompt holds bytes that are not UTF-8"),
    ],
)
def test_wrong_flags_are_told_and_nothing_is_written(tmp_path: Path, flags: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as told:
        rows_of(tmp_path / "rows.jsonl", "--rows", "2", *flags)
    assert said in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_file_is_not_overwritten_and_a_missing_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        rows_of(tmp_path / "rows.jsonl", "--rows", "2")
    assert (tmp_path / "rows.jsonl").read_text() == "mine"
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="is there already"):
        rows_of(tmp_path / "link.jsonl", "--rows", "2")
    with pytest.raises(RunError, match="cannot write rows to .*: Not a directory"):
        rows_of(tmp_path / "rows.jsonl" / "more.jsonl", "--rows", "2")
    with pytest.raises(RunError, match="cannot write rows to .*: File name too long"):
        rows_of(tmp_path / f"{'long' * 100}.jsonl", "--rows", "2")
    with pytest.raises(RunError, match="cannot write rows to .*: No such file"):
        rows_of(tmp_path / "missing" / "rows.jsonl", "--rows", "2")


def test_a_file_that_another_process_has_written_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def interrupted() -> Iterator[dict[str, Any]]:
        yield {}
        path.write_text("theirs")
        yield {}

    with pytest.raises(ConfigError, match="is there already"):
        write_new(path, interrupted())
    assert path.read_text() == "theirs"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]
