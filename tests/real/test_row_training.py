"""Runs of training on rows: stopped and continued, tested on rows held out, and what they leave behind is used."""

import json
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from palmette import Searcher
from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError, RunError
from palmette.event_log import read_events
from palmette.events import CheckpointWritten, RowsTested, UpdateDone
from palmette.report.training.page import is_training, write_training_page
from palmette.run.label_steps import FILE_NAME
from palmette.run.train_rows import PrmRun, RowRun, SftRun
from palmette.settings import Config
from palmette.tasks import ladder
from tests.command import palmette

pytestmark = pytest.mark.real


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def answers(count: int) -> Iterator[dict[str, Any]]:
    for problem in islice(ladder.problems(1, "train", 0), count):
        yield {"prompt": problem.expression, "completion": "\n".join(problem.lines)}


def steps(count: int, grade: int = 2) -> Iterator[dict[str, Any]]:
    """Yield solutions of which every second one has a line with the wrong result 0; its label says so.

    One that can be learned from few rows: telling any wrong result takes tens of thousands.
    """
    generator = random.Random(0)
    for place, problem in enumerate(islice(ladder.problems(grade, "train", 0), count)):
        lines, labels = list(problem.lines), [True] * len(problem.lines)
        if place % 2:
            wrong = generator.randrange(len(lines))
            left, _, _ = lines[wrong].partition("=")
            lines[wrong], labels[wrong] = f"{left}=0", False
        yield {"prompt": problem.expression, "completions": lines, "labels": labels}


def trained(kind: type[RowRun], config: Config, folder: Path, *, copied: Path | None = None) -> list[Any]:
    """Train to the end. `copied` becomes the folder as it is where update 2 is done and its checkpoint not written.

    That is what a run leaves that is killed there.
    """
    folder.mkdir(exist_ok=True)
    seen: list[Any] = []
    with kind(config, folder) as run:
        for event in run.updates():
            seen.append(event)
            if copied is not None and isinstance(event, UpdateDone) and event.update == 2:
                shutil.copytree(folder, copied)
    return seen


def files_of(folder: Path, update: int) -> dict[str, bytes]:
    checkpoint = folder / "checkpoints" / f"update-{update:08d}"
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in sorted(checkpoint.rglob("*.safetensors"))}


def told(event: UpdateDone) -> dict[str, float]:
    return {name: number for name, number in event.numbers.items() if name != "tokens_per_second"}


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("table", ["sft", "prm"])
def test_a_run_that_was_stopped_ends_with_the_files_of_one_that_was_not(
    table: str, method: str, tmp_path: Path
) -> None:
    rows = answers(12) if table == "sft" else steps(12, grade=1)
    values = {
        f"{table}.data": write_rows(tmp_path / "rows.jsonl", rows),
        f"{table}.epochs": 2,
        f"{table}.batch_tokens": 200,
        f"{table}.test_share": 0.1,
        "train.method": method,
        "train.learning_rate": 1e-3,
        "train.schedule": "cosine",
        "train.checkpoint_every": 1,
        "train.eval_every": 2,
    }
    kind = SftRun if table == "sft" else PrmRun
    config = load_config(None, values)
    whole = trained(kind, config, tmp_path / "whole", copied=tmp_path / "stopped")
    updates = [event for event in whole if isinstance(event, UpdateDone)]
    assert [event.update for event in updates] == list(range(1, len(updates) + 1)) and len(updates) >= 3
    # Before its checkpoint: that update is made again.
    rest = trained(kind, config, tmp_path / "stopped")
    assert [told(event) for event in rest if isinstance(event, UpdateDone)] == [told(event) for event in updates[1:]]
    assert files_of(tmp_path / "stopped", len(updates)) == files_of(tmp_path / "whole", len(updates))
    assert files_of(tmp_path / "whole", len(updates)) != files_of(tmp_path / "whole", len(updates) - 1)
    tests = [event.update for event in whole if isinstance(event, RowsTested)]
    assert tests == sorted({0, *range(2, len(updates) + 1, 2), len(updates)})
    written = [event for event in read_events(tmp_path / "whole") if isinstance(event, CheckpointWritten)]
    assert len(written) == len(updates)


def test_answers_are_learned(tmp_path: Path) -> None:
    # The policy was trained on lines that are shorter by one: it has to unlearn the line that says the result alone.
    rows = [{**row, "completion": f"{row['completion']}\n0"} for row in answers(40)]
    config = load_config(
        None,
        {
            "sft.data": write_rows(tmp_path / "rows.jsonl", iter(rows)),
            "sft.epochs": 4,
            "sft.batch_tokens": 500,
            "sft.test_share": 0.1,
            "train.learning_rate": 1e-3,
        },
    )
    seen = trained(SftRun, config, tmp_path / "run")
    before, after = (event.numbers["loss"] for event in seen if isinstance(event, RowsTested))
    assert after < before / 3
    assert is_training(tmp_path / "run")
    page = write_training_page([tmp_path / "run"], tmp_path / "page.html").read_text()
    assert '"method":"sft","on":"rows.jsonl"' in page and f'"planned":{seen[-2].update}' in page


def test_training_goes_on_from_an_adapter(tmp_path: Path) -> None:
    rows = [{**row, "completion": f"{row['completion']}\n0"} for row in answers(24)]
    values = {
        "sft.data": write_rows(tmp_path / "rows.jsonl", iter(rows)),
        "sft.batch_tokens": 500,
        "sft.epochs": 3,
        "sft.test_share": 0.1,
        "train.method": "lora",
        "train.lora_rank": 4,
        "train.learning_rate": 3e-3,
    }
    first = trained(SftRun, load_config(None, values), tmp_path / "first")
    before, after = (event.numbers["loss"] for event in first if isinstance(event, RowsTested))
    assert after < before
    adapter = max((tmp_path / "first" / "checkpoints").iterdir())
    going_on = {**values, "policy.adapter": str(adapter)}
    second = trained(SftRun, load_config(None, going_on), tmp_path / "second", copied=tmp_path / "stopped")
    again, at_last = (event.numbers["loss"] for event in second if isinstance(event, RowsTested))
    assert again == pytest.approx(after, rel=1e-6)
    assert at_last < after
    assert {path.name for path in adapter.iterdir()} == {path.name for path in last_of(tmp_path / "second").iterdir()}
    trained(SftRun, load_config(None, going_on), tmp_path / "stopped")
    updates = second[-2].update
    assert files_of(tmp_path / "stopped", updates) == files_of(tmp_path / "second", updates)
    with Searcher("seedling", None, settings={"policy.adapter": str(last_of(tmp_path / "second"))}) as searcher:
        assert searcher.search("(3+4)*2").solution is not None

    def refused(said: str, **changed: Any) -> None:
        other = {**going_on, **{key.replace("__", "."): value for key, value in changed.items()}}
        with pytest.raises(ConfigError, match=said):
            SftRun(load_config(None, other), tmp_path / "other")

    refused("policy.adapter has rank 4, train.lora_rank is 8: set it to 4", train__lora_rank=8)
    refused("train.method is full. Set it to lora", train__method="full")
    refused("the reference is the policy without its adapter", train__kl_weight=0.1)


def last_of(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def test_a_reward_model_learns_which_steps_are_labeled_wrong_and_scores_a_search(tmp_path: Path) -> None:
    config = load_config(
        None,
        {
            "prm.data": write_rows(tmp_path / "steps.jsonl", steps(120)),
            "prm.epochs": 3,
            "prm.batch_tokens": 800,
            "prm.test_share": 0.2,
            "train.learning_rate": 1e-3,
            "train.schedule": "linear",
        },
    )
    seen = trained(PrmRun, config, tmp_path / "run")
    first, last = (event.numbers for event in seen if isinstance(event, RowsTested))
    assert first["auc"] == 0.5 and first["loss"] == pytest.approx(0.6931, abs=1e-4)  # A head that begins with 0.
    assert last["auc"] > 0.7
    reward = str(tmp_path / "run" / "checkpoints" / f"update-{seen[-2].update:08d}")
    settings = {"reward.score": "head", "task.format": "ladder"}
    with Searcher("seedling", reward, "rebase", settings=settings, width=4, total_tokens=60) as searcher:
        scores = [node.score for node in searcher.search("3*4+5").tree.nodes[1:]]
    assert scores and all(score is not None and 0 < score < 1 for score in scores)


LABELS: dict[str, Any] = {
    "prm.questions": 6,
    "task.grade": 1,
    "search.depth": 6,
    "search.completions": 2,
    "search.total_tokens": 80,
    "search.questions_in_flight": 2,
    "train.learning_rate": 1e-3,
}


def test_labels_by_rollouts_are_made_once_and_then_learned(tmp_path: Path) -> None:
    config = load_config(None, LABELS)
    trained(PrmRun, config, tmp_path / "whole")
    labels = (tmp_path / "whole" / FILE_NAME).read_text()
    rows = [json.loads(line) for line in labels.splitlines()]
    assert len(rows) == 6
    assert all(len(row["completions"]) == len(row["labels"]) and set(row["labels"]) <= {0, 1} for row in rows)
    # Killed in the middle of a line: what is whole is kept, the rest made again, and the end is the same.
    (tmp_path / "killed").mkdir()
    with PrmRun(config, tmp_path / "killed"):
        pass
    (tmp_path / "killed" / FILE_NAME).write_text("".join(labels.splitlines(keepends=True)[:3]) + '{"id": "tr')
    asked: list[tuple[int, int]] = []
    with PrmRun(config, tmp_path / "killed", lambda done, total: asked.append((done, total))) as run:
        list(run.updates())
    assert asked == [(5, 6), (6, 6)]
    assert (tmp_path / "killed" / FILE_NAME).read_text() == labels
    assert files_of(tmp_path / "killed", 1) == files_of(tmp_path / "whole", 1)


def test_labels_need_reference_answers(tmp_path: Path) -> None:
    questions = write_rows(tmp_path / "questions.jsonl", iter([{"prompt": "1+2"}, {"prompt": "3+4"}]))
    config = load_config(None, {**LABELS, "task.name": questions, "prm.questions": 2})
    with pytest.raises(ConfigError, match="no question gave a label for a step"):
        trained(PrmRun, config, tmp_path / "run")


def test_a_run_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    config = load_config(None, {"sft.data": write_rows(path, answers(4))})
    trained(SftRun, config, tmp_path / "run")
    write_rows(path, answers(5))
    with pytest.raises(RunError, match="was started with other rows than those that are there now"):
        trained(SftRun, load_config(config, {"sft.epochs": 2}), tmp_path / "run")


def test_what_does_not_fit_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", answers(4))
    with pytest.raises(BudgetError, match="needs"):
        trained(SftRun, load_config(None, {"sft.data": data, "memory.devices": "cpu:20MiB"}), tmp_path / "run")


@pytest.mark.parametrize(
    ("command", "row", "said"),
    [
        ("sft", {"prompt": "1+2", "completion": ""}, "rows.jsonl, line 1: 'completion' is empty"),
        ("sft", {"prompt": "1+2", "completion": "3" * 3000}, "line 1: the row has 3006 tokens, the model takes 2048"),
        ("sft", {"prompt": "<eos>", "completion": "3"}, "line 1: a question holds '<eos>', a control token"),
        ("train-prm", {"prompt": "1", "completions": ["2"], "labels": []}, "and 'labels' has 0: give one each"),
    ],
)  # fmt: skip
def test_a_bad_row_is_one_clear_line(tmp_path: Path, command: str, row: Any, said: str) -> None:
    write_rows(tmp_path / "rows.jsonl", iter([row]))
    done = palmette(command, "--data", "rows.jsonl", "--out", "run", cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.startswith("palmette: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert said in lines[0]


def test_the_same_command_goes_on_and_other_settings_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", answers(6))
    command = ("sft", "--data", "rows.jsonl", "--out", "run", "--json")
    first = palmette(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["policy"].endswith("update-00000001")
    again = palmette(*command, "--epochs", "2", cwd=tmp_path)
    assert again.returncode == 0 and "goes on after update 1" in again.stderr, again.stderr
    resumed = palmette("sft", "--resume", "run", "--set", "sft.epochs=3", "--json", cwd=tmp_path)
    assert json.loads(resumed.stdout)["policy"].endswith("update-00000003"), resumed.stderr
    other = palmette(*command, "--set", "train.learning_rate=0.1", cwd=tmp_path)
    assert other.returncode == 1 and "was started with train.learning_rate 2e-05" in other.stderr
