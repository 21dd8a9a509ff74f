"""Run folders: made once, read back, those of earlier versions too."""

import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palmette.commands.evaluate import evaluate as evaluate_command
from palmette.commands.plan import plan
from palmette.commands.progress import ProgressLine
from palmette.commands.report import rejudging, report
from palmette.config import load_config, recorded_config
from palmette.errors import ConfigError, RunError
from palmette.event_log import FILE_NAME, EventLog, read_events
from palmette.events import (
    Evaluated,
    OomRetry,
    QuestionFinished,
    QuestionStarted,
    RunStarted,
    UpdateDone,
    WaveDone,
)
from palmette.report.compare import compare
from palmette.report.page import write_page
from palmette.run.folder import (
    anchored,
    check_command,
    finished_questions,
    has_begun,
    new_folder,
    recorded_values,
    run_config,
)
from palmette.run.sweep import PLAN, Cell, open_sweep
from palmette.score.judges.math import MathJudge
from palmette.search.rejudge import Rejudge, evaluate
from palmette.search.replay import replay
from palmette.search.summary import summarize
from palmette.settings import Config
from palmette.tasks.load import load_task

OLD_CONFIG: dict[str, Any] = {
    "seed": 3, "out": None,
    "policy": {
        "model": "seedling", "adapter": None, "dtype": "float32", "weights": "as_is", "device": "auto",
        "temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0, "batch_rows": 512,
    },
    "reward": {
        "model": "seedling-ripe", "score": "likelihood", "adapter": None, "dtype": "float32", "weights": "int8",
        "device": "auto", "batch_rows": 512, "kv_budget": None,
    },
    "task": {
        "name": "ladder", "questions": 1, "skip": 0, "seed": 0, "grade": 1, "split": "test", "system": None,
        "prompt": None, "step_end": None, "stop": None, "verify_seconds": 5.0,
    },
    "embedder": {"model": "minilm", "device": "auto", "batch_rows": 128, "cut": 0.05},
    "search": {
        "strategy": "best_of_n", "width": 2, "depth": 25, "step_tokens": 256, "total_tokens": 1024, "fold": "min",
        "vote": "weighted", "rebase_temperature": 0.2, "lambda_kv": 1.25, "lambda_diversity": None,
        "kv_cost": "nodes", "kv_budget": None, "first_step_tokens": 32, "questions_in_flight": 16,
    },
    "memory": {
        "devices": None, "inference_share": 0.95, "training_share": 0.9, "prompt_tokens": 256, "kv_holds": "path",
        "any_embed_device": False, "guard": True, "reclaim_least": "1GiB", "sample_seconds": 0.1,
    },
    "train": {
        "method": "full", "lora_rank": 16, "lora_targets": "all", "optimizer": "adamw", "optimizer_dtype": "float32",
        "questions": 16, "group_size": 8, "response_tokens": 1024, "micro_batch_tokens": 4096,
        "gradient_checkpointing": True, "logits": "chunked", "reference": "none",
    },
}  # fmt: skip
"""What version 0.1.0 wrote into its first event before keys were renamed."""

(ASKED,) = load_task(load_config(None, {"task.questions": 1, "task.grade": 1}).task).questions
ANSWER = ASKED.reference


def old_events() -> list[dict[str, Any]]:
    """Return a run as version 0.1.0 wrote it: kind `rung`, no prompt tokens, no verdicts on single leaves."""
    right = {"id": 1, "parent": 0, "tokens": [5, 6], "text": f"={ANSWER}", "logprobs": [-0.5, -0.25]}
    wrong = {"id": 2, "parent": 0, "tokens": [5], "text": "=no", "logprobs": [-0.5]}
    chosen = {vote: {"answer": ANSWER, "outcome": "correct"} for vote in ("best", "majority", "weighted")}
    name = ASKED.id
    return [
        {"kind": "run_started", "version": "0.1.0", "config": OLD_CONFIG},
        {"kind": "question_started", "question": name, "prompt": ASKED.messages[-1]["content"],
         "reference": ANSWER, "prompt_tokens": 9, "digest": ASKED.digest},
        {"kind": "rung", "guard": "wave", "unit": "node", "tried": 8, "limit": 4, "reason": "no memory",
         "freed_bytes": 5, "free_bytes_before": 10, "free_bytes_after": 15, "held_bytes": 70, "spared": False,
         "began": 100.0, "moment": 0.5},
        {"kind": "wave_done", "question": name, "wave": 0, "children": {}, "kv_tokens": 12, "separate_kv_tokens": 21,
         "nodes": [{**right, "finished": True, "score": 0.75}, {**wrong, "finished": True, "score": 0.5}]},
        {"kind": "question_finished", "question": name, "choices": chosen,
         "leaf_outcomes": {"correct": 1, "wrong": 1}, "generated_tokens": 3, "mean_kv_tokens": 12.0,
         "peak_kv_tokens": 12, "peak_separate_kv_tokens": 21, "waves": 1},
        {"kind": "memory_timeline", "device": "cpu", "began": 100.0, "total_bytes": 1000, "moments": [0.0, 1.0],
         "held_bytes": [50, 70], "places": [None, 0],
         "phases": [{"name": "search", "times": 1, "seconds": 1.0, "peak_bytes": 70, "planned_bytes": None}]},
        {"kind": "session", "seconds": 1.5, "policy_calls": 4, "reward_calls": 2, "questions": 1,
         "kv_bytes_per_token": 64},
    ]  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / FILE_NAME).write_text("".join(json.dumps(event) + "\n" for event in old_events()))
    return folder


def test_the_config_of_an_old_run_is_read_under_todays_keys(old: Path) -> None:
    config = run_config(old)
    assert (config.seed, config.search.aggregate, config.search.width) == (3, "min", 2)
    assert (config.policy.quantize, config.reward.quantize) == ("none", "int8")
    assert (config.policy.backend, config.task.judge) == ("local", "auto")
    assert config == run_config(old, imports=False)
    assert config.search.options == {
        "rebase_temperature": 0.2, "lambda_kv": 1.25, "lambda_diversity": None, "kv_cost": "nodes",
    }  # fmt: skip


def test_every_setting_of_training_is_read_back_as_it_was_recorded() -> None:
    told = {"train.optimizer": "muon", "train.method": "full", "train.schedule": "linear", "sft.prompt_weight": 0.25}
    config = load_config(None, told)
    assert recorded_config(recorded_values(config), "here") == config


def test_an_old_run_is_reported_judged_again_and_continued(old: Path) -> None:
    events = list(read_events(old))
    (retry,) = [event for event in events if isinstance(event, OomRetry)]
    assert (retry.tried, retry.limit, retry.held_bytes) == (8, 4, 70)
    assert summarize(events).votes["best"].share == 1.0

    (one,) = replay(events).values()
    assert [(node.state, node.score) for node in one.tree.nodes[1:]] == [("finished", 0.75), ("finished", 0.5)]
    assert one.tree.distinct_tokens([1, 2]) == 9 + 2

    told = compare([old], rejudging())
    (question,) = told.runs[0]["questions"]
    assert [(ballot[0], ballot[2]) for ballot in question["ballots"]] == [(1, 0.75)]  # "=no" holds no number
    assert question["outcomes"] == ["correct"]
    (memory,) = told.runs[0]["memory"]
    assert [(mark["tried"], mark["limit"]) for mark in memory["retries"]] == [(8, 4)]
    assert told.runs[0]["config"]["search"]["aggregate"] == "min"
    assert told.rows[0].values["best"] == 1.0

    task = load_task(run_config(old).task)
    judge = rejudging()(run_config(old))
    assert isinstance(judge, Rejudge)
    assert evaluate([one], judge)["min"]["weighted"].share == 1.0
    assert finished_questions(old, task) == {ASKED.id}


def test_kv_tokens_of_an_old_run_are_counted_again_as_a_cache_holds_them(old: Path) -> None:
    # Both steps begin with token 5; the last token of each has no KV, except that of the second, which the first has.
    events = list(read_events(old))
    (wave,) = [event for event in events if isinstance(event, WaveDone)]
    assert (wave.kv_tokens, wave.separate_kv_tokens, wave.kv_as_held) == (9 + 1, 10 + 9, True)
    summary = summarize(events)
    assert (summary.mean_kv_tokens, summary.peak_kv_tokens, summary.peak_separate_kv_tokens) == (10.0, 10, 19)
    (question,) = compare([old], rejudging()).runs[0]["questions"]
    assert (question["waves"][0]["kv"], question["waves"][0]["shared"], question["waves"][0]["separate"]) == (10, 9, 19)
    with EventLog(old) as log:  # A resumed run: what this version adds is as held already.
        log.write(QuestionStarted("new", "?", "1", 9, "d"))
        log.write(replace(wave, question="new", kv_tokens=77))
    assert [event.kv_tokens for event in read_events(old) if isinstance(event, WaveDone)] == [10, 77]


def test_an_old_sweep_is_opened_under_todays_keys(tmp_path: Path) -> None:
    cells = [{"strategy": "beam", "width": 2, "seed": 0}, {"strategy": "ets", "width": 2, "seed": 0}]
    (tmp_path / PLAN).write_text(json.dumps({"base": OLD_CONFIG, "cells": cells}))
    sweep = open_sweep(tmp_path)
    assert sweep.cells == (Cell("beam", 2, 0), Cell("ets", 2, 0))
    assert sweep.config(sweep.cells[1]).search.aggregate == "min"
    assert sweep.config(sweep.cells[1]).search.options["lambda_kv"] == 1.25


def test_a_sweep_with_a_cell_that_no_folder_can_hold_is_damaged(tmp_path: Path) -> None:
    cells = [{"strategy": "beam", "width": 10**400, "seed": 0}]
    (tmp_path / PLAN).write_text(json.dumps({"base": OLD_CONFIG, "cells": cells}))
    with pytest.raises(RunError, match="sweep.json: damaged: .* a name that no folder can have"):
        open_sweep(tmp_path).folders()


def test_a_new_folder_must_be_empty_and_writable(tmp_path: Path) -> None:
    folder = new_folder(load_config(None, {"out": str(tmp_path / "a" / "b")}))
    assert folder.is_dir()
    (folder / "file").touch()
    with pytest.raises(ConfigError, match="is not empty. Choose a new folder$"):  # There is nothing to continue.
        new_folder(load_config(None, {"out": str(folder)}))
    (folder / FILE_NAME).touch()
    with pytest.raises(ConfigError, match="is not empty. Choose a new folder, or continue it with --resume"):
        new_folder(load_config(None, {"out": str(folder)}))
    with pytest.raises(ConfigError, match="cannot make the folder"):
        new_folder(load_config(None, {"out": str(folder / "file" / "below")}))


def test_without_out_a_folder_is_named_by_the_moment_and_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_folder(load_config(None, {"search.strategy": "beam", "search.width": 4})).name.endswith("-beam-4")
    assert new_folder(load_config(), "my.module:Own/../x").name.endswith("-my.module_Own_.._x")


def test_paths_of_a_config_hold_in_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "seedling").mkdir()  # A folder of that name does not take the place of the zoo's model.
    settings = {"task.name": "rows.jsonl", "reward.model": "model", "reward.adapter": "gone"}
    config = anchored(load_config(None, settings))
    assert (config.task.name, config.reward.model) == (str(tmp_path / "rows.jsonl"), str(tmp_path / "model"))
    assert (config.policy.model, config.reward.adapter) == ("seedling", "gone")


def test_rewards_test_task_and_critic_of_a_training_run_hold_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests.jsonl").touch()
    (tmp_path / "critic").mkdir()
    (tmp_path / "head").mkdir()  # A folder of that name does not take the place of the value head.
    rewards = {"mine.py:right": 1.0, "judge": 0.5, "package.module:own": 2.0}
    train = {"train.rewards": rewards, "train.eval_task": "tests.jsonl", "train.critic": "critic"}
    config = anchored(load_config(None, train)).train
    assert config.rewards == {f"{tmp_path}/mine.py:right": 1.0, "judge": 0.5, "package.module:own": 2.0}
    assert (config.eval_task, config.critic) == (f"{tmp_path}/tests.jsonl", f"{tmp_path}/critic")
    others = anchored(load_config(None, {"train.eval_task": "ladder"})).train
    assert (others.eval_task, others.critic) == ("ladder", "head")
    with pytest.raises(ConfigError, match=r"train.rewards names .*/mine.py:right twice: give it one weight"):
        anchored(load_config(None, {"train.rewards": {"mine.py:right": 1.0, "./mine.py:right": 1.0}}))


def test_a_folder_named_like_a_task_or_a_part_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ladder", "rg:chain_sum", "mine:Backend", "mine:vectors"):
        (tmp_path / name).mkdir()
    for task in ("ladder", "rg:chain_sum"):
        settings = {"task.name": task, "policy.model": "mine:Backend", "embedder.model": "mine:vectors"}
        config = anchored(load_config(None, {**settings, "task.questions": 1}))
        assert (config.task.name, config.policy.model, config.embedder.model) == tuple(settings.values())
        assert len(load_task(config.task).questions) == 1


def test_finished_questions_are_known_and_a_task_that_changed_is_refused(tmp_path: Path) -> None:
    task = load_task(load_config(None, {"task.questions": 2}).task)
    first, second = task.questions
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        log.write(QuestionStarted(first.id, "", first.reference, 3, first.digest))
        log.write(QuestionFinished(first.id, {}, {}, 1, 1.0, 1, 1, 1))
        log.write(QuestionStarted(second.id, "", second.reference, 3, second.digest))
    assert finished_questions(tmp_path, task) == {first.id}
    other = load_task(load_config(None, {"task.questions": 2, "task.prompt": "other {question}"}).task)
    with pytest.raises(RunError, match=f"question {first.id} is no longer what it was; the task has changed"):
        finished_questions(tmp_path, other)


def test_a_run_has_begun_when_its_folder_has_more_than_its_config(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        assert not has_begun(tmp_path)
        log.write(Evaluated(0, 1, 0.5, 0.5, 0.1, 1, 1.0))
        (tmp_path / "report.html").touch()
        assert not has_begun(tmp_path)
        log.write(UpdateDone(1, 4, {}, {}, {}))
        assert has_begun(tmp_path)
        log.clear()
        assert log.is_empty
        log.write(QuestionStarted("q", "", None, 3, ""))  # A search.
        assert has_begun(tmp_path)
        log.clear()
    (tmp_path / FILE_NAME).write_text("damaged\n")
    assert has_begun(tmp_path)
    (tmp_path / FILE_NAME).write_text("")
    (tmp_path / "checkpoints").mkdir()
    assert has_begun(tmp_path)


STARTED_BY: dict[str, dict[str, Any]] = {
    "train": {},
    "sft": {"sft.data": "rows.jsonl"},
    "train-prm": {"prm.questions": 4},
    "search": {"sft.data": "rows.jsonl"},  # One file may serve several commands.
}


@pytest.mark.parametrize("command", STARTED_BY)
def test_a_run_goes_on_only_with_the_command_that_started_it(tmp_path: Path, command: str) -> None:
    with EventLog(tmp_path) as log:
        config = load_config(None, STARTED_BY[command]).model_dump(mode="json")
        log.write(RunStarted("0", config, "" if command == "search" else "id"))
        if command == "search":
            log.write(QuestionStarted("q", "", None, 3, ""))
    for other in STARTED_BY:
        expected = pytest.raises(
            RunError, match=f"is a run of palmette {command}: go on with palmette {command} --resu"
        )
        with nullcontext() if other == command else expected:
            check_command(tmp_path, other)


def test_training_runs_and_runs_without_results_of_earlier_versions_are_told_apart(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        for command in STARTED_BY:
            check_command(tmp_path, command)
        log.write(UpdateDone(1, 4, {}, {}, {}))
    with pytest.raises(RunError, match="is a run of palmette train"):
        check_command(tmp_path, "search")


def test_a_folder_that_does_not_begin_with_its_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(old_events()[-1]) + "\n")
    with pytest.raises(RunError, match="the first event is not run_started"):
        run_config(tmp_path)


def numbers(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the numbers of an event stand."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield from numbers(value, (*path, key))
    if isinstance(values, int | float) and not isinstance(values, bool):
        yield path


@pytest.mark.parametrize("damaged", [10**400, -(10**30), -1, 2**63 - 1, 1e308, 1e18])
def test_a_damaged_number_is_read_or_told_as_damage(tmp_path: Path, damaged: float) -> None:
    whole = old_events()
    whole[1]["prompt_token_ids"] = list(range(9))
    for line, path in [(line, path) for line, event in enumerate(whole[1:], start=1) for path in numbers(event)]:
        events = json.loads(json.dumps(whole))
        inside = events[line]
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = damaged
        other = {"question": "x", "digest": "x"}  # A second finished question: numbers of two are added up.
        events += [{**event, **other} for event in events[1:5] if "question" in event]
        (tmp_path / FILE_NAME).write_text("".join(json.dumps(event) + "\n" for event in events))
        with suppress(RunError):
            compared = compare([tmp_path], lambda config: Rejudge(MathJudge(3600), [ASKED]))
            write_page(compared, tmp_path / "report.html")


def test_a_short_line_takes_no_memory_for_the_number_it_names(tmp_path: Path) -> None:
    started = {**old_events()[1], "prompt_tokens": 10**8}
    (tmp_path / FILE_NAME).write_text(json.dumps(started) + "\n")
    tracemalloc.start()
    (one,) = replay(read_events(tmp_path)).values()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert one.tree.distinct_tokens([0]) == 10**8
    assert peak_bytes < 10**6


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (1, {"prompt_token_ids": [1, 2, 3]}, "has 3 prompt tokens, not the 9 that it counts"),
        (3, {"nodes": [{**old_events()[3]["nodes"][0], "logprobs": [-0.5]}]}, "2 tokens and 1 log-probabilities"),
    ],
)
def test_events_that_contradict_themselves_are_damaged(
    tmp_path: Path, line: int, change: dict[str, Any], said: str
) -> None:
    events = old_events()
    events[line] |= change
    (tmp_path / FILE_NAME).write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(RunError, match=f"the run's events are damaged: .*{said}"):
        replay(read_events(tmp_path))


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Returns who makes a run's folder that names code beside it, in the folder where commands are started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def made(**settings: Any) -> Path:
        folder = tmp_path / "strangers"
        folder.mkdir()
        (folder / "evil.py").write_text("open('acted', 'w').close()\n", encoding="utf-8")
        config = json.loads(json.dumps(OLD_CONFIG))
        for key, value in settings.items():
            table, _, last = key.partition("_")
            config[table][last] = value
        events = [{**old_events()[0], "config": config}, *old_events()[1:]]
        (folder / FILE_NAME).write_text("".join(json.dumps(event) + "\n" for event in events))
        return folder

    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"task_name": "strangers.evil:task"},
        {"task_judge": "strangers.evil:judge"},
        {"task_name": "rg:chain_sum", "task_judge": "strangers.evil:judge"},
        {"search_strategy": "strangers.evil:Strategy"},
        {"policy_backend": "strangers.evil:Backend", "reward_score": "strangers.evil:Scorer"},
    ],
)
def test_nothing_that_only_opens_a_run_imports_code_that_its_folder_names(
    strangers: Callable[..., Path], settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = strangers(**settings)
    report([folder])
    judges = "task_name" in settings or "task_judge" in settings
    assert ("importing strangers.evil:" in capsys.readouterr().err) == judges
    with pytest.raises(ConfigError, match="names strangers.evil:.*add --trust") if judges else nullcontext():
        evaluate_command(folder)
    plans = "search_strategy" in settings
    with pytest.raises(ConfigError, match="names strangers.evil:Strategy, .*add --trust") if plans else nullcontext():
        plan(resume=folder)
    assert not Path("acted").exists()


def test_code_that_a_run_names_is_imported_where_the_user_asks_for_it(strangers: Callable[..., Path]) -> None:
    folder = strangers(task_judge="strangers.evil:judge")
    with pytest.raises(ConfigError, match="has no 'judge'"):
        evaluate_command(folder, trust=True)
    assert Path("acted").exists()


@pytest.mark.parametrize(
    ("name", "questions", "said"),
    [
        ("/dev/zero", 1, "/dev/zero is not a regular file"),
        ("pipe", 1, "pipe is not a regular file"),
        ("ladder", 10**7, "the task has 10,000,000 questions to make"),
        ("rg:chain_sum", 10**7, "the task has 10,000,000 questions to make"),
    ],
)
def test_a_report_ends_whatever_task_a_folder_names(
    strangers: Callable[..., Path], capsys: pytest.CaptureFixture[str], name: str, questions: int, said: str
) -> None:
    folder = strangers(task_name=name, task_questions=questions, task_grade=4)
    os.mkfifo("pipe")
    report([folder])
    assert f"answers are not judged again: {said}" in capsys.readouterr().err
    assert (folder / "report.html").is_file()


def test_a_folder_cannot_draw_on_the_terminal(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = old.rename(old.parent / "a\x1b[31m[bold]\n[")
    monkeypatch.setenv("COLUMNS", "200")
    report([folder])
    evaluate_command(folder)
    with ProgressLine(folder.name):
        pass
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].endswith("a [31m[bold] [/report.html")
    assert shown.out.splitlines()[1].strip().startswith("a [31m[bold] [: 1 question")
    assert shown.err == "a [31m[bold] [: loading\n"
