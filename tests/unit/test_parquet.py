"""Parquet files with TRL's and verl's columns are tasks as they are; reward functions get all columns of their rows."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from palmette.errors import ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.load import load_task
from palmette.tasks.task import Task
from palmette.train.rewards.rewards import Rewards
from palmette.train.rollout.responses import Response

pytestmark = pytest.mark.unit


def task_of(folder: Path, rows: list[dict[str, Any]]) -> Task:
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    return load_task(TaskSettings(name=str(folder / "rows.parquet"), questions=100))


def reward_of(folder: Path, task: Task, code: str) -> float | None:
    (folder / "reward.py").write_text(code)
    response = Response(task.questions[0], 1, "4", (7,), (-0.1,), "4", False, None, None)
    return Rewards({f"{folder / 'reward.py'}:f": 1.0}, seconds=60, on_error="stop").of([response]).totals[0]


def test_rows_of_verl(tmp_path: Path) -> None:
    row = {
        "data_source": "gsm8k", "prompt": [{"role": "user", "content": "2+2?"}], "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"split": "train", "index": 3},
    }  # fmt: skip
    task = task_of(tmp_path, [row])
    assert (task.questions[0].messages, task.questions[0].reference) == (({"role": "user", "content": "2+2?"},), "4")
    code = (
        "def f(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float((data_source, solution_str, ground_truth, extra_info['index']) == ('gsm8k', '4', '4', 3))\n"
    )
    assert reward_of(tmp_path, task, code) == 1.0


def test_a_ground_truth_that_is_a_table_goes_to_reward_functions_alone(tmp_path: Path) -> None:
    truth = {"style": "rule", "ground_truth": {"target": ["4", "four"]}}
    row = {"data_source": "nq", "prompt": [{"role": "user", "content": "2+2?"}], "reward_model": truth}
    task = task_of(tmp_path, [row])
    assert task.questions[0].reference is None
    code = "def f(solution_str, ground_truth):\n    return solution_str in ground_truth['target']\n"
    assert reward_of(tmp_path, task, code) == 1.0


def test_rows_of_trl_keep_their_columns_as_they_are(tmp_path: Path) -> None:
    task = task_of(tmp_path, [{"prompt": "2+2?", "answer": 4, "problem": "sum", "id": "a", "level": 2}])
    assert (task.questions[0].id, task.questions[0].reference) == ("a", "4")
    code = (
        "def f(prompts, completions, answer, problem, level, **kwargs):\n"
        "    return [float((prompts, completions, answer, problem, level) == (['2+2?'], ['4'], [4], ['sum'], [2]))]\n"
    )
    assert reward_of(tmp_path, task, code) == 1.0


def test_a_broken_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ConfigError, match=r"broken.parquet: cannot read the file") as raised:
        load_task(TaskSettings(name=str(tmp_path / "broken.parquet")))
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="the file has no rows"):
        task_of(tmp_path, [])
