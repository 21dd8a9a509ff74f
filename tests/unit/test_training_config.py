"""What a training run decides for itself is recorded: a run that goes on has the same questions and limits."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from palmette.config import load_config
from palmette.run.folder import anchored
from palmette.run.training_checks import training_config
from palmette.settings import Config
from palmette.tasks.task import Question
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
