"""What a training run decides for itself is recorded: a run that goes on has the same questions and limits."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.events import UpdateDone
from palmette.run.folder import anchored
from palmette.run.training_checks import check_references, check_training, training_config
from palmette.settings import Config
from palmette.tasks.task import Question
from palmette.train.notices import notices_of
from palmette.train.rollout.split import digest_of, training_data


def recorded_twice(values: dict[str, Any]) -> tuple[Config, Config]:
    """Return a config as a run records it, and as the same run has it when it goes on from what was recorded."""
    first = training_config(anchored(training_config(load_config(None, values))))
    return first, training_config(load_config(Config.model_validate(first.model_dump(mode="json")), {}))


def test_a_run_that_names_no_number_of_questions_has_10_000_and_goes_on_with_them() -> None:
    first, later = recorded_twice({"task.grade": 1, "train.questions": 4, "train.updates": 2})
    assert first.task.questions == later.task.questions == 10_000
    assert len(training_data(first.task, first.train).training.questions) == 10_000


def test_a_number_of_questions_that_is_given_is_kept() -> None:
    first, later = recorded_twice({"task.questions": 50})
    assert first.task.questions == later.task.questions == 50


def test_all_rows_of_a_file_are_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps({"question": f"1+{n}", "answer": str(1 + n)}) + "\n" for n in range(70)))
    first, later = recorded_twice({"task.name": str(file), "train.questions": 4})
    for config in (first, later):
        assert len(training_data(config.task, config.train).training.questions) == 70


def test_questions_that_differ_in_anything_they_are_rewarded_by_have_other_digests() -> None:
    def asked(number: int, **columns: Any) -> Question:
        return Question(str(number), ({"role": "user", "content": f"1+{number}"},), "2", {"columns": columns})

    when = datetime(2020, 1, 1)  # As parquet has them.
    questions = [asked(1, level=1, when=when), asked(2, level=1, when=when)]
    others = [
        questions[:1],
        questions[::-1],
        [asked(1, level=1, when=when), asked(2, level=2, when=when)],
        [asked(1, level=1, when=when), replace(questions[1], reference="3")],
    ]
    assert digest_of(questions) == digest_of([asked(1, when=when, level=1), asked(2, level=1, when=when)])
    assert len({digest_of(questions), *map(digest_of, others)}) == 5


def test_only_tokens_limit_independent_branches_unless_a_depth_is_given() -> None:
    first, later = recorded_twice({"search.total_tokens": 240})
    assert first.search.depth == later.search.depth == 240
    first, later = recorded_twice({"search.total_tokens": 240, "search.depth": 7})
    assert first.search.depth == later.search.depth == 7
    first, later = recorded_twice({"search.total_tokens": 240, "search.strategy": "rebase"})
    assert first.search.depth == later.search.depth == 25


def rows_file(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_without_an_answer_are_refused_where_the_judge_is_the_only_reward(tmp_path: Path) -> None:
    bare = [{"prompt": f"1+{n}", "solution": str(1 + n)} for n in range(3)]
    answered = [{"prompt": f"2+{n}", "answer": str(2 + n)} for n in range(2)]
    names = {
        "none": rows_file(tmp_path / "none.jsonl", bare),
        "some": rows_file(tmp_path / "some.jsonl", bare + answered),
        "all": rows_file(tmp_path / "all.jsonl", answered),
    }

    def checked(rows: str, **changed: Any) -> str | None:
        given = {"task.name": names[rows], "train.questions": 1, **changed}
        config = training_config(load_config(None, given))
        return check_references(config, training_data(config.task, config.train).training)

    with pytest.raises(ConfigError, match=r"none.jsonl has a reference answer.* 'answer' \(found prompt, solution\)"):
        checked("none")
    assert (checked("some") or "").startswith(f"3 of the 5 questions of {names['some']} have no reference answer")
    assert checked("all") is None
    assert checked("none", **{"train.rewards": {"judge": 1.0, "json:dumps": 1.0}}) is None
    assert checked("none", **{"task.judge": "json:dumps"}) is None


def test_a_test_set_that_is_the_training_set_is_told_as_such(tmp_path: Path) -> None:
    name = rows_file(tmp_path / "sums.jsonl", [{"question": f"1+{n}", "answer": str(1 + n)} for n in range(5)])
    given = {"task.name": name, "train.eval_task": name, "train.eval_every": 1, "train.questions": 2}
    config = training_config(load_config(None, given))
    with pytest.raises(ConfigError, match=r"^5 of the 5 questions of .* are in train.eval_task .* too .* 0 are left"):
        training_data(config.task, config.train)


def test_a_reward_file_that_is_not_there_is_told_with_the_path_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = training_config(load_config(None, {"train.rewards": {"lost/rewards.py:right": 1.0}}))
    with pytest.raises(ConfigError, match=f"there is no file {tmp_path}/lost/rewards.py; a relative path starts at"):
        check_training(config)


def test_the_notice_about_cut_responses_holds_for_any_reward() -> None:
    numbers = {"cut_share": 0.3, "responses": 8.0, "unrewarded": 0.0}
    (notice,) = notices_of(UpdateDone(1, 4, numbers, {}, {}, ()), None, 0)
    assert notice.text.startswith("30% of the responses were cut at search.total_tokens and rewarded as far as they")
