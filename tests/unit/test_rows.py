import csv
import io
from dataclasses import replace

import pytest

from palmette.report.rows import COLUMNS, as_csv, as_markdown, comparison_key, pooled_rows
from palmette.search.curve import Point
from palmette.search.summary import Accuracy, Summary


def summary(strategy: str, seed: int, correct: int, questions: int, kv: float) -> Summary:
    accuracy = Accuracy(correct, questions, {})
    return Summary(
        config={"search": {"strategy": strategy, "width": 4, "vote": "weighted"}, "seed": seed},
        questions=questions,
        votes={"best": accuracy, "majority": accuracy, "weighted": accuracy},
        single=accuracy,
        any_leaf=accuracy,
        generated_tokens=100.0,
        mean_kv_tokens=kv,
        peak_kv_tokens=int(2 * kv),
        peak_separate_kv_tokens=0,
        seconds=5.0,
        timed_questions=questions,
        policy_calls=3,
        reward_calls=2,
        kv_bytes_per_token=10,
    )


TABLE = pooled_rows([summary("beam", 0, 1, 10, 50), summary("rebase", 0, 4, 10, 80), summary("beam", 1, 9, 30, 70)], {})


def test_seeds_are_pooled_by_their_questions() -> None:
    beam, rebase = (row.values for row in TABLE)
    assert (beam["strategy"], beam["seeds"], beam["questions"]) == ("beam", 2, 40)
    assert beam["best"] == 0.25
    assert beam["mean_kv_tokens"] == 65.0  # (10 x 50 + 30 x 70) / 40
    assert (beam["peak_kv_tokens"], beam["mean_kv_bytes"], beam["peak_kv_bytes"]) == (140, 650.0, 1400)
    assert (beam["policy_calls"], beam["seconds"], beam["questions_per_second"]) == (6, 10.0, 4.0)
    assert rebase["best"] == 0.4


def test_runs_that_differ_by_more_than_their_seeds_are_not_pooled() -> None:
    one, other = summary("beam", 0, 1, 10, 50), summary("beam", 1, 1, 10, 50)
    other.config["policy"] = {"model": "another"}
    assert len(pooled_rows([one, other], {})) == 2


def test_a_run_given_twice_counts_once() -> None:
    one = summary("beam", 0, 1, 10, 50)
    (row,) = pooled_rows([one, one, summary("beam", 1, 2, 10, 50)], {})
    assert (row.values["seeds"], row.values["questions"], row.values["best"]) == (2, 20, 0.15)


def test_rows_of_one_strategy_and_width_are_told_apart_by_their_settings() -> None:
    runs = [summary("ets", 0, 1, 10, 50), summary("ets", 0, 1, 10, 50), summary("beam", 0, 1, 10, 50)]
    for run, weight in zip(runs, (1.0, 1.25, 2.0), strict=True):
        run.config["search"]["lambda_kv"] = weight
    assert [row.values["strategy"] for row in pooled_rows(runs, {})] == [
        "ets lambda_kv=1.0",
        "ets lambda_kv=1.25",
        "beam",
    ]


def test_rows_of_different_tasks_are_told_apart() -> None:
    runs = [summary("ets", 0, 1, 10, 50), summary("ets", 0, 1, 10, 50)]
    for run, questions in zip(runs, (6, None), strict=True):
        run.config["task"] = {"questions": questions}
    assert [row.values["strategy"] for row in pooled_rows(runs, {})] == [
        "ets task.questions=6",
        "ets task.questions=none",
    ]


def test_a_rate_counts_only_questions_whose_time_is_known() -> None:
    killed = replace(summary("beam", 0, 1, 10, 50), timed_questions=3)
    (row,) = pooled_rows([killed], {})
    assert (row.values["questions"], row.values["questions_per_second"]) == (10, 0.6)


def test_a_row_stands_beside_best_of_n_at_its_own_tokens() -> None:
    run = summary("beam", 0, 1, 10, 50)
    points = [Point(1, Accuracy(2, 10, {}), 50.0, 0.0), Point(2, Accuracy(4, 10, {}), 200.0, 0.0)]
    (row,) = pooled_rows([run], {comparison_key(run.config): points})
    assert row.values["bon_same_tokens"] == pytest.approx(0.3)  # 100 lies midway between 50 and 200 by logarithm
    (other,) = pooled_rows([run], {"another setting": points})
    assert other.shown("bon_same_tokens") == ""


def test_the_csv_has_every_column_and_the_markdown_those_people_compare() -> None:
    (first, _) = csv.DictReader(io.StringIO(as_csv(TABLE)))
    assert tuple(first) == COLUMNS
    assert float(first["best_low"]) < 0.25 < float(first["best_high"])
    assert first["bon_same_tokens"] == ""  # no best_of_n run to measure with
    lines = as_markdown(TABLE).splitlines()
    assert lines[2].startswith("| beam | 4 | 0.250 | 0.250 |")
    assert len({line.count("|") for line in lines}) == 1
