"""Training from Python: it goes on where it was stopped, and ends as the commands do."""

import json
from pathlib import Path
from typing import Any

import pytest

import palmette
from palmette.events import Event, UpdateDone

pytestmark = pytest.mark.real

SMALL: dict[str, Any] = {"updates": 2, "questions": 2, "learning_rate": 1e-3, "checkpoint_every": 1}
SEARCH = {"task.grade": 1, "task.questions": 8, "search.width": 2, "search.total_tokens": 40}


class LeftError(Exception):
    """Raised by a listener that has heard enough."""


def leave(event: Event) -> None:
    """Stop the run after its first update."""
    if isinstance(event, UpdateDone):
        raise LeftError


def test_stopped_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """A listener that raises ends a run; the same call goes on, and a third one only reads."""
    whole = palmette.train_policy("seedling", "ladder", out=tmp_path / "whole", settings=SEARCH, **SMALL)
    with pytest.raises(LeftError):
        palmette.train_policy("seedling", "ladder", out=tmp_path / "left", settings=SEARCH, progress=leave, **SMALL)
    heard: list[Event] = []
    again = palmette.train_policy(
        "seedling", "ladder", out=tmp_path / "left", settings=SEARCH, progress=heard.append, **SMALL
    )
    assert [update.update for update in again.updates] == [update.update for update in whole.updates] == [1, 2]
    assert any(isinstance(event, UpdateDone) for event in heard)
    names = ("model.safetensors", "training.safetensors")
    for name in names:
        assert (again.model / name).read_bytes() == (whole.model / name).read_bytes()
    heard.clear()
    read = palmette.train_policy(
        "seedling", "ladder", out=tmp_path / "left", settings=SEARCH, progress=heard.append, **SMALL
    )
    assert (read, heard) == (again, [])
    with pytest.raises(palmette.RunError, match="learning_rate"):
        palmette.train_policy(
            "seedling", "ladder", out=tmp_path / "left", settings=SEARCH, **{**SMALL, "learning_rate": 1e-4}
        )


def test_rows_train_a_policy_and_a_reward_model(tmp_path: Path) -> None:
    """The reward model that begins as the policy scores its search."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "2+6", "completion": "2+6=8\n"}) + "\n" for _ in range(4)))
    policy = palmette.sft("seedling", rows, epochs=1, out=tmp_path / "sft", settings={"sft.test_share": 0})
    steps = tmp_path / "steps.jsonl"
    labeled = [{"prompt": "2+6", "completions": [f"2+6={told}"], "labels": [told == 8]} for told in (8, 9, 8, 7)]
    steps.write_text("".join(json.dumps(row) + "\n" for row in labeled))
    judge = palmette.train_prm(str(policy.model), steps, epochs=1, out=tmp_path / "prm", settings={"prm.test_share": 0})
    with palmette.Searcher(
        str(policy.model), str(judge.model), "beam", width=4, settings={"task.format": "ladder"}
    ) as searcher:
        result = searcher.search({"question": "2+6", "answer": "8"})
    assert result.answer is not None
    assert all(0 <= ballot.score <= 1 for ballot in result.ballots)


def test_wrong_arguments_are_told_at_once(tmp_path: Path) -> None:
    """Before a folder is made for what cannot be."""
    with pytest.raises(
        palmette.ConfigError, match=r"arguments: unknown key 'train.updtes'. Did you mean 'train.updates'"
    ):
        palmette.train_policy("seedling", "ladder", out=tmp_path / "run", updtes=2)
    with pytest.raises(palmette.ConfigError, match="settings: give a table"):
        palmette.train_policy("seedling", "ladder", out=tmp_path / "run", settings=[1])  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())
    with pytest.raises(palmette.PalmetteError, match="no.jsonl"):
        palmette.sft("seedling", tmp_path / "no.jsonl", out=tmp_path / "run")
