"""Reward functions are called as TRL and verl call them; one that fails stops the run or is left out and counted."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palmette.errors import ConfigError, RunError
from palmette.tasks.task import Question
from palmette.train.rewards.rewards import Rewards, find_reward
from palmette.train.rewards.signature import TrainerState
from palmette.train.rollout.responses import Response

pytestmark = pytest.mark.unit

FUNCTIONS = """
import asyncio, sys, time

def trl(prompts, completions, level, **kwargs):
    assert prompts[0][0]["role"] == "user" and kwargs["completion_ids"] == [[7, 8], [7]]
    return [len(completion[0]["content"]) * number for completion, number in zip(completions, level)]

async def trl_async(completions, answer):
    await asyncio.sleep(0)
    return [float(completion[0]["content"] == right) for completion, right in zip(completions, answer)]

def trl_partly(completions):
    return [None, 2.0]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth) + extra_info["bonus"], "of": data_source}

def trl_logs(completion_ids, trainer_state, log_extra, log_metric, environments, **columns):
    assert environments is None and columns["level"] == [3, 3] and "prompt" not in columns
    log_extra("length", [len(tokens) for tokens in completion_ids])
    log_metric("pace", 2.0)
    log_metric("pace", 4.0)
    return [trainer_state.global_step / trainer_state.max_steps] * 2

def trl_logs_too_few(completions, log_extra):
    log_extra("length", [1])

def verl_table(solution_str, ground_truth):
    return {"score": 1.0, "acc": solution_str == ground_truth, "note": "no number"}

async def meets(solution):
    # Returns only if it is called for both responses at once.
    waiting.append(solution)
    while len(waiting) < 2:
        await asyncio.sleep(0.001)
    return len(waiting)

waiting = []

async def hangs_on_one(solution):
    await asyncio.sleep(30 if solution == "55" else 0)
    return 1.0

async def blocks_for_ever(solution):
    time.sleep(30)

async def verl_without_score(solution_str, ground_truth):
    return {"acc": 1.0} if solution_str == "55" else {"score": 2.0, "acc": 0.5}

async def verl_nan_metric(solution_str, ground_truth):
    return {"score": 1.0, "right": 1.0, "pace": float("nan") if solution_str == "55" else 3.0}

def trl_nan_metric(completions, log_metric):
    log_metric("pace", float("inf"))

def own(solution, reference):
    return solution == reference

def exits(solution):
    sys.exit(0)

def trl_exits(completions):
    sys.exit("enough")

async def exits_on_one(solution):
    if solution == "55":
        sys.exit()
    return 1.0

def raises(solution):
    raise ZeroDivisionError("no luck")

def nan(solution):
    return float("nan")

def huge(solution):
    return 1e308

def slow(solution):
    called.append(solution)
    time.sleep(30)

called = []

def too_few(completions):
    return [1.0]
"""


@pytest.fixture(name="file")
def file_of_functions(tmp_path: Path) -> str:
    path = tmp_path / "my_rewards.py"
    path.write_text(FUNCTIONS)
    return str(path)


def responses() -> list[Response]:
    columns: dict[str, Any] = {"level": 3, "data_source": "here", "extra_info": {"bonus": 0.5}}
    question = Question("q", ({"role": "user", "content": "2+2?"},), "4", {"columns": columns})
    return [
        Response(question, 1, "4", (7, 8), (-0.1, -0.2), "4", False, 1.0, 0.25),
        Response(question, 2, "55", (7,), (-0.3,), None, True, 0.0, None),
    ]


def rewards(names: dict[str, float], on_error: Any = "stop", seconds: float = 60.0) -> Rewards:
    return Rewards(names, seconds=seconds, on_error=on_error)


def test_functions_of_trl_get_batches_with_columns(file: str) -> None:
    assert rewards({f"{file}:trl": 1.0}).of(responses()).totals == [3.0, 6.0]


def test_async_functions_of_trl_are_awaited(file: str) -> None:
    assert rewards({f"{file}:trl_async": 2.0}).of(responses()).totals == [2.0, 0.0]


def test_functions_of_verl_get_one_response_and_may_return_a_table(file: str) -> None:
    assert rewards({f"{file}:verl": 1.0}).of(responses()).totals == [1.5, 0.5]


def test_functions_may_name_solution_and_reference(file: str) -> None:
    assert rewards({f"{file}:own": 1.0}).of(responses()).totals == [1.0, 0.0]


def test_functions_of_trl_know_how_far_training_is_and_what_they_log_is_kept(file: str) -> None:
    found = rewards({f"{file}:trl_logs": 1.0}).of(responses(), TrainerState(3, 6, 0.5))
    assert (found.totals, found.metrics, found.columns) == ([0.5, 0.5], {"pace": [2.0, 4.0]}, {"length": ["2", "1"]})


def test_other_numbers_of_a_table_of_verl_are_kept(file: str) -> None:
    found = rewards({f"{file}:verl_table": 1.0}).of(responses())
    assert (found.totals, found.metrics) == ([1.0, 1.0], {"acc": [True, False]})


@pytest.mark.parametrize(
    ("name", "kept", "metrics"),
    [("verl_without_score", 2.0, {"acc": [0.5]}), ("verl_nan_metric", 1.0, {"right": [1.0], "pace": [3.0]})],
)
def test_a_bad_table_for_one_response_leaves_the_others_their_rewards(
    file: str, name: str, kept: float, metrics: dict[str, list[float]]
) -> None:
    found = rewards({f"{file}:{name}": 1.0}, on_error="skip").of(responses())
    assert (found.totals, found.failed, found.metrics) == ([kept, None], 1, metrics)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("verl_without_score", r"it returned {'acc': 1.0} \(dict\), a table without score. The response: '55'"),
        ("verl_nan_metric", r"it logged pace as nan \(float\), and a metric is a finite number .* The response: '55'"),
        ("trl_nan_metric", r"it logged pace as inf \(float\), and a metric is a finite number up to 1e"),
    ],
)
def test_what_is_wrong_with_a_table_or_a_metric_is_told_by_name(file: str, name: str, told: str) -> None:
    with pytest.raises(RunError, match=told):
        rewards({f"{file}:{name}": 1.0}).of(responses())


def test_plain_prompts_give_plain_completions(tmp_path: Path) -> None:
    code = "def f(prompts, completions):\n    return [float(p + c == '2+2?4') for p, c in zip(prompts, completions)]\n"
    (tmp_path / "plain.py").write_text(code)
    given = [replace(one, question=replace(one.question, key={"columns": {"prompt": "2+2?"}})) for one in responses()]
    assert rewards({f"{tmp_path / 'plain.py'}:f": 1.0}).of(given).totals == [1.0, 0.0]


def test_an_async_function_is_called_for_all_responses_at_once_and_each_call_has_its_limit(file: str) -> None:
    assert rewards({f"{file}:meets": 1.0}).of(responses()).totals == [2.0, 2.0]
    found = rewards({f"{file}:hangs_on_one": 1.0}, on_error="skip", seconds=0.2).of(responses())
    assert (found.totals, found.failed) == ([1.0, None], 1)


def test_several_rewards_are_summed_with_their_weights_and_none_is_left_out(file: str) -> None:
    found = rewards({"judge": 1.0, "score": 4.0, f"{file}:trl_partly": 0.5}).of(responses())
    # 1 x 1 + 4 x 0.25, the function says nothing; 1 x 0 + 0.5 x 2, no score.
    assert found.totals == [2.0, 1.0]
    assert found.parts["score"] == [0.25, None]


def test_rewards_of_judges_and_weighted_sums_that_overflow_are_told(file: str) -> None:
    judged = [replace(one, judged=1e308) for one in responses()]
    with pytest.raises(RunError, match=r"the reward judge failed on question q: .*it returned 1e\+308"):
        rewards({"judge": 1.0}).of(judged)
    assert rewards({"judge": 1.0}, on_error="skip").of(judged).totals == [None, None]
    with pytest.raises(RunError, match=r"the weighted sum of the rewards of question q is 1e\+30, and it may be 1e"):
        rewards({"judge": 1e30}).of(responses())


def test_a_response_that_nothing_rewards_has_no_reward() -> None:
    assert rewards({"score": 1.0}).of(responses()).totals == [0.25, None]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raises", "ZeroDivisionError: no luck"),
        ("huge", r"it returned 1e\+308 \(float\), and a reward is a finite number up to 1e\+18 or None"),
        ("nan", "a reward is a finite number up to 1e"),
        ("too_few", "returned 1 rewards for 2 completions"),
        ("trl_logs_too_few", "log_extra got 1 values for 2 completions"),
    ],
)
def test_a_reward_that_fails_stops_the_run_with_the_response_shown(file: str, name: str, told: str) -> None:
    with pytest.raises(RunError, match=told) as raised:
        rewards({f"{file}:{name}": 1.0}).of(responses())
    assert "The response: '4'" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("raises", 'raise ZeroDivisionError("no luck")'),
        ("trl_exits", 'sys.exit("enough")'),
        ("exits_on_one", "sys.exit()"),
    ],
)
def test_a_reward_that_fails_is_told_with_the_line_of_its_file(file: str, name: str, code: str) -> None:
    line = next(number for number, text in enumerate(FUNCTIONS.splitlines(), start=1) if text.strip() == code)
    with pytest.raises(RunError, match=rf"failed on question q: .* at {re.escape(file)}:{line}\. The response"):
        rewards({f"{file}:{name}": 1.0}).of(responses())


def test_a_reward_that_returns_no_number_is_told_without_a_line(file: str) -> None:
    with pytest.raises(RunError, match=r"up to 1e\+18 or None\. The response"):
        rewards({f"{file}:nan": 1.0}).of(responses())


@pytest.mark.parametrize(("name", "told"), [("exits", "SystemExit: 0"), ("trl_exits", "SystemExit: enough")])
def test_a_reward_that_ends_the_process_has_failed(file: str, name: str, told: str) -> None:
    with pytest.raises(RunError, match=f"failed on question q: RuntimeError: it raised {told}"):
        rewards({f"{file}:{name}": 1.0}).of(responses())
    assert rewards({f"{file}:{name}": 1.0}, on_error="skip").of(responses()).failed == 2


def test_an_async_reward_that_ends_the_process_has_failed_for_that_response_alone(file: str) -> None:
    found = rewards({f"{file}:exits_on_one": 1.0}, on_error="skip").of(responses())
    assert (found.totals, found.failed) == ([1.0, None], 1)


def test_a_reward_that_takes_too_long_stops_the_run(file: str) -> None:
    with pytest.raises(RunError, match=r"longer than train.reward_seconds 0.05"):
        rewards({f"{file}:slow": 1.0}, seconds=0.05).of(responses())
    assert sys.modules["palmette_reward_my_rewards"].called == ["4"]  # The second response is not waited for.


def test_an_async_reward_that_blocks_has_the_limit_of_one_call_and_not_of_all(file: str) -> None:
    many = responses() * 10_000  # Together they would have 100 minutes.
    with pytest.raises(RunError, match=r"longer than train.reward_seconds 0.3"):
        rewards({f"{file}:blocks_for_ever": 1.0}, seconds=0.3).of(many)


def test_failures_are_left_out_and_counted_where_the_config_says_so(file: str) -> None:
    found = rewards({"judge": 1.0, f"{file}:raises": 1.0}, on_error="skip").of(responses())
    assert (found.totals, found.failed) == ([1.0, 0.0], 2)


def test_rewards_of_files_are_called_by_the_file_without_its_folder_unless_two_are_the_same(
    file: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "my_rewards.py"
    other.write_text("def own(solution):\n    return 1\n")
    found = rewards({"judge": 1.0, f"{file}:own": 10.0}).of(responses())
    assert (found.totals, list(found.parts)) == ([11.0, 0.0], ["judge", "my_rewards.py:own"])
    found = rewards({f"{file}:own": 10.0, f"{other}:own": 1.0}).of(responses())
    assert (found.totals, list(found.parts)) == ([11.0, 1.0], [f"{file}:own", f"{other}:own"])


def test_the_files_of_functions_are_told_apart_by_their_content(file: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "my_rewards.py"
    other.write_text("def own(solution):\n    return 1\n")
    names = [f"{file}:own", f"{other}:own", "sys:getsizeof", "json:dumps"]
    before = rewards(dict.fromkeys(names, 1.0)).digests
    assert (before["sys:getsizeof"], len(set(before.values()))) == ("", 4)  # A module without a file.
    assert rewards(dict.fromkeys(names, 2.0)).digests == before
    other.write_text("def own(solution):\n    return 2\n")
    after = rewards(dict.fromkeys(names, 1.0)).digests
    assert [name for name in names if after[name] != before[name]] == [f"{other}:own"]


def test_rewards_that_cannot_be_imported_are_told_before_training(file: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no file {tmp_path}/none.py"):
        find_reward(f"{tmp_path / 'none.py'}:reward")
    with pytest.raises(ConfigError, match="Did you mean 'trl_async'"):
        find_reward(f"{file}:trl_asnyc")
    with pytest.raises(ConfigError, match="Did you mean 'judge'"):
        find_reward("jugde")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    with pytest.raises(ConfigError, match="cannot be imported: ModuleNotFoundError"):
        find_reward(f"{broken}:reward")
    with pytest.raises(ConfigError, match="not a function"):
        find_reward("sys:version")
    assert "palmette_reward_my_rewards" in sys.modules
