"""The data of the page about training runs: events in, numbers out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from palmette.event_log import EventLog
from palmette.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    MemoryTimeline,
    Noticed,
    OomRetry,
    QuestionStarted,
    RowsTested,
    RunStarted,
    ShownSample,
    ShownStep,
    ShownTree,
    UpdateDone,
)
from palmette.report.training.data import training_data
from palmette.report.training.page import is_training, write_training_page
from palmette.report.training.sample_data import KeptSamples
from palmette.run.boards import board_values
from palmette.settings import Config
from tests.command import palmette

HOSTILE = "</script><script>alert(1)</script>{{data}}{{script}}<img src=x onerror=alert(2)>\u2028"


def sample(text: str = "= 4", *, question: str = "q", reward: float | None = 1.0) -> ShownSample:
    return ShownSample(question, "2+2", text, reward, 0.5, False, {"judge": reward})


def update(number: int, reward: float, *, tokens: float = 100.0, rollout: float = 2.0, **more: float) -> UpdateDone:
    numbers = {"reward": reward, "generated_tokens": tokens, **more}
    return UpdateDone(number, number, numbers, {"rollout": rollout, "update": 1.0}, {"rollout": 10, "update": 20})


def evaluated(number: int, single: float) -> Evaluated:
    return Evaluated(number, 50, single, single + 0.1, 0.05, 1000, 4.0)


def data(*events: Event, most_bytes: int = 10**6) -> dict[str, Any]:
    return training_data(events, most_bytes)


def test_a_later_event_of_the_same_update_replaces_the_earlier_one() -> None:
    found = data(
        update(1, 0.1),
        update(2, 0.2),
        update(3, 0.9),
        update(2, 0.25, rollout=4.0),
        evaluated(2, 0.3),
        evaluated(2, 0.4),
    )
    assert found["updates"] == [1, 2, 3]
    assert found["numbers"] == {"reward": [0.1, 0.25, 0.9], "generated_tokens": [100.0] * 3}
    assert found["seconds"] == [3.0, 8.0, 11.0]
    assert [one["single"] for one in found["tested"]] == [0.4]


def test_costs_add_up_and_a_test_costs_what_the_updates_before_it_did() -> None:
    found = data(
        evaluated(0, 0.3), update(1, 0.1, tokens=100), update(2, 0.2, tokens=50), evaluated(2, 0.5), evaluated(9, 0.5)
    )
    assert (found["tokens"], found["seconds"]) == ([100.0, 150.0], [3.0, 6.0])
    assert [(one["update"], one["tokens"], one["seconds"]) for one in found["tested"]] == [
        (0, 0.0, 0.0), (2, 150.0, 6.0), (9, 150.0, 6.0),
    ]  # fmt: skip


def test_a_statistic_that_an_update_does_not_tell_is_a_gap() -> None:
    found = data(update(1, 0.1), update(2, 0.2, kl=0.5), update(3, 0.3, kl=1e300))
    assert found["numbers"]["kl"] == [None, 0.5, None]  # The last is too large for any axis.


def test_phases_have_their_seconds_and_the_most_memory_of_any_update() -> None:
    first = UpdateDone(1, 8, {}, {"rollout": 2.0, "update": 1.0}, {"load": 5, "rollout": 10})
    second = UpdateDone(2, 16, {}, {"rollout": 3.0}, {"load": 5, "rollout": 7, "update": 30})
    found = data(first, second, evaluated(2, 0.5), CheckpointWritten(2, "checkpoints/update-00000002", 100, 0.5))
    assert found["phases"] == [
        {"name": "rollout", "each": [2.0, 3.0], "total": 5.0, "peak": 10},
        {"name": "update", "each": [1.0, 0.0], "total": 1.0, "peak": 30},
        {"name": "evaluation", "each": None, "total": 4.0, "peak": None},
        {"name": "checkpoint", "each": None, "total": 0.5, "peak": None},
        {"name": "load", "each": None, "total": None, "peak": 5},
    ]
    assert found["checkpoint"] == {"update": 2, "folder": "checkpoints/update-00000002", "bytes": 100}


def test_a_summary_has_the_ends_of_the_rewards_and_the_best_test() -> None:
    rewards = [0.0, 0.2] + [0.5] * 26 + [0.8, 0.9, 1.0]  # 31 updates: three at each end
    events: list[Event] = [update(number, reward) for number, reward in enumerate(rewards, start=1)]
    summary = data(evaluated(0, 0.3), *events, evaluated(20, 0.7), evaluated(25, 0.7), evaluated(31, 0.6))["summary"]
    assert (summary["first_reward"], summary["last_reward"]) == (pytest.approx(0.7 / 3), pytest.approx(0.9))
    assert (summary["before"]["single"], summary["last"]["single"]) == (0.3, 0.6)
    assert summary["best"] == {"update": 20, "single": 0.7, "error": 0.05}  # of equals the first
    assert (summary["updates"], summary["tokens"], summary["seconds"], summary["peak"]) == (31, 3100.0, 93.0, 20)


def test_a_run_without_an_update_has_a_page_with_nothing_in_it() -> None:
    found = data(evaluated(0, 0.3))
    assert (found["updates"], found["samples"], found["phases"][0]["name"]) == ([], [], "evaluation")
    assert found["summary"]["last_reward"] is None and found["summary"]["peak"] is None


def test_the_same_notice_of_many_updates_is_told_once() -> None:
    cut = [Noticed(number, "cut", f"{number}% were cut") for number in (3, 4, 4, 7)]
    found = data(update(1, 0.1), *cut, Noticed(5, "signal", "no signal"))["notices"]
    assert found == [
        {"about": "cut", "first": 3, "last": 7, "times": 3, "text": "7% were cut"},
        {"about": "signal", "first": 5, "last": 5, "times": 1, "text": "no signal"},
    ]


def test_the_last_timeline_of_each_process_is_drawn_with_its_retries() -> None:
    def timeline(began: float, *held: int) -> MemoryTimeline:
        return MemoryTimeline("cpu", began, 1000, tuple(map(float, range(len(held)))), held, (None,) * len(held), ())

    retry = OomRetry("update", "token", 8, 4, "no memory", 5, 10, 15, 700, began=2.0, moment=0.5)
    first, second = data(timeline(1.0, 5), timeline(1.0, 5, 6), retry, timeline(2.0, 9))["memory"]
    assert (first["held"], second["held"], len(second["retries"])) == ([5, 6], [9], 1)


def test_responses_stand_below_their_question() -> None:
    shown = (sample("a"), sample("b", reward=None), sample("c", question="r"))
    event = UpdateDone(1, 8, {}, {}, {}, shown)
    (entry,) = data(event)["samples"]
    assert [(one["id"], [answer["text"] for answer in one["responses"]]) for one in entry["questions"]] == [
        ("q", ["a", "b"]), ("r", ["c"]),
    ]  # fmt: skip
    assert entry["questions"][0]["responses"][1] == {
        "text": "b", "reward": None, "advantage": 0.5, "cut": False, "parts": {"judge": None}, "logged": {},
    }  # fmt: skip


def step(parent: int, text: str, *, reward: float | None = None) -> ShownStep:
    return ShownStep(parent, text, 3, "kept" if reward is None else "finished", 0.5, 0.25, reward)


def test_a_tree_is_read_downward_and_indented_where_it_branches() -> None:
    steps = (step(0, "a"), step(0, "b", reward=0.0), step(1, "c", reward=1.0), step(1, "d"), step(4, "e", reward=0.0))
    event = UpdateDone(1, 8, {}, {}, {}, (sample(),), (ShownTree("q", steps, 7),))
    tree = data(event)["samples"][0]["questions"][0]["tree"]
    assert [(one["text"], one["place"], one["level"]) for one in tree["steps"]] == [
        ("a", 1, 0), ("c", 3, 1), ("d", 4, 1), ("e", 5, 2), ("b", 2, 0),
    ]  # fmt: skip
    assert (tree["left_out"], tree["steps"][1]["reward"], tree["steps"][0]["advantage"]) == (7, 1.0, 0.25)


def test_a_tree_whose_steps_come_before_their_parents_is_not_drawn() -> None:
    event = UpdateDone(1, 8, {}, {}, {}, (sample(),), (ShownTree("q", (step(1, "itself"), step(0, "b")), 0),))
    assert data(event)["samples"][0]["questions"][0]["tree"] is None


def test_samples_of_every_second_fourth_or_eighth_update_are_kept_where_all_are_too_large() -> None:
    one = len(json.dumps(training_data([UpdateDone(1, 1, {}, {}, {}, (sample(),))], 10**6)["samples"][0]["questions"]))
    kept = KeptSamples(10 * one)
    for number in range(1, 32):
        kept.add(number, (sample(),))
    assert (kept.every, [entry["update"] for entry in kept.entries()]) == (4, [1, 4, 8, 12, 16, 20, 24, 28, 31])
    kept.add(31, ())  # An update of a run that went on, without samples.
    assert [entry["update"] for entry in kept.entries()][-1] == 28


def write_run(folder: Path, *events: Event, config: Config | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    with EventLog(folder) as log:
        log.write(RunStarted("0", (config or Config()).model_dump(mode="json")))
        for event in events:
            log.write(event)
    return folder


def test_model_text_stands_in_the_page_as_data_only(tmp_path: Path) -> None:
    hostile = ShownSample(HOSTILE, HOSTILE, HOSTILE, 1.0, 0.5, True, {HOSTILE: 1.0})
    numbers = {HOSTILE: 1.0, "reward": 0.5}
    done = UpdateDone(1, 8, numbers, {HOSTILE: 1.0}, {HOSTILE: 5}, (hostile,))
    folder = write_run(tmp_path / "run", done, Noticed(1, HOSTILE, HOSTILE))
    text = write_training_page([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<script", text)) == 2  # the data and our own
    assert "<img" not in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found
    assert json.loads(found[1])["runs"][0]["samples"][0]["questions"][0]["prompt"] == HOSTILE
    assert not re.findall(r'(?:src|href)="', text)


def test_training_runs_are_told_from_searches(tmp_path: Path) -> None:
    assert is_training(write_run(tmp_path / "a", update(1, 0.5)))
    assert is_training(write_run(tmp_path / "b", evaluated(0, 0.5)))
    assert not is_training(write_run(tmp_path / "c", QuestionStarted("q", "2+2", "4", 3, "d")))
    assert not is_training(write_run(tmp_path / "d"))


def test_one_command_writes_the_page_of_one_or_several_training_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", update(1, 0.5))
    write_run(tmp_path / "b", update(1, 0.6))
    write_run(tmp_path / "searched", QuestionStarted("q", "2+2", "4", 3, "d"))
    assert palmette("report", "a", cwd=tmp_path).stdout == "a/report.html\n"
    assert palmette("report", "a", "b", "--out", "both.html", cwd=tmp_path).stdout == "both.html\n"
    assert "palmette training report" in (tmp_path / "both.html").read_text(encoding="utf-8")
    mixed = palmette("report", "a", "searched", cwd=tmp_path)
    assert (mixed.returncode, "a is a training run, searched is none" in mixed.stderr) == (2, True)


def test_boards_are_told_numbers_under_a_group_each() -> None:
    assert board_values(update(1, 0.5, tokens=7)) == {
        "train/reward": 0.5, "train/generated_tokens": 7.0, "seconds/rollout": 2.0, "seconds/update": 1.0,
        "peak_bytes/rollout": 10.0, "peak_bytes/update": 20.0,
    }  # fmt: skip
    assert board_values(evaluated(1, 0.5)) == {
        "test/single": 0.5, "test/elected": 0.6, "test/error": 0.05, "seconds/evaluation": 4.0,
    }  # fmt: skip
    assert board_values(Noticed(1, "cut", "cut")) == {}


def test_a_board_that_is_unknown_or_not_installed_is_told_before_training(tmp_path: Path) -> None:
    unknown = palmette("train", "--set", "train.log_to=[tensorbord]", "--out", "run", cwd=tmp_path)
    assert (unknown.returncode, "Did you mean 'tensorboard'?" in unknown.stderr) == (2, True)
    missing = palmette("train", "--set", "train.log_to=[wandb]", "--out", "run", cwd=tmp_path)
    said = "train.log_to names wandb, which is not installed: pip install wandb"
    assert (missing.returncode, said in missing.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_a_run_on_rows_has_losses_and_what_the_last_test_said(tmp_path: Path) -> None:
    rows = [
        UpdateDone(number, number, {"loss": loss, "epoch": number / 2, "fed_tokens": 50.0}, {"update": 1.0}, {})
        for number, loss in enumerate((3.0, 2.0, 1.5, 1.0), 1)
    ]
    tests = [RowsTested(0, 4, {"loss": 3.5}, 0.5), RowsTested(2, 4, {"loss": 2.5, "auc": 0.75}, 0.5)]
    found = data(tests[0], *rows[:2], tests[1], *rows[2:])
    assert found["numbers"]["test_loss"] == [3.5, 2.5, 2.5, 2.5]
    assert found["numbers"]["test_auc"] == [None, 0.75, 0.75, 0.75]
    told = {"first_loss": 3.0, "last_loss": 1.0, "loss_before": 3.5, "loss_after": 2.5}
    assert {name: found["summary"][name] for name in told} == told
    assert found["tokens"] == [50, 100, 150, 200]
    assert {phase["name"]: phase["total"] for phase in found["phases"]} == {"update": 4.0, "test": 1.0}
    assert board_values(tests[1]) == {"test/loss": 2.5, "test/auc": 0.75, "seconds/test": 0.5}
    config = Config.model_validate({"sft": {"data": "/data/rows.jsonl", "epochs": 3}})
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", config.model_dump(mode="json")))
        for event in rows:
            log.write(event)
    page = write_training_page([tmp_path], tmp_path / "page.html").read_text()
    # Four updates are two epochs of three.
    assert '"method":"sft","on":"rows.jsonl","planned":6' in page
