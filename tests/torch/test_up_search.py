"""A search that starts its server itself, and goes on where the server is killed in the middle."""

import json
from pathlib import Path
from typing import Any

import pytest

from palmette.event_log import read_events
from palmette.events import QuestionFinished, WaveDone
from palmette.launch.ask import free_port
from tests.command import palmette
from tests.programs import fake_program

SEARCH = ("search", "--backend", "vllm", "--up", "--reward", "none", "--width", "4", "--questions", "3")


def waves(run: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for event in read_events(run):
        if isinstance(event, WaveDone):
            found.setdefault(event.question, []).append(event)
    return found


def test_a_search_whose_server_is_killed_is_that_of_a_server_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_program(tmp_path)
    done = {}
    for name, last in (("whole", 10**6), ("killed", 20)):
        monkeypatch.setenv("FAKE_SERVER", json.dumps({"writes": last, "died": str(tmp_path / f"{name} died")}))
        done[name] = palmette(
            *SEARCH, "--set", f"servers.vllm_python={program}", "--set", "search.total_tokens=40",
            "--set", f"policy.address=http://127.0.0.1:{free_port()}", "--out", str(tmp_path / name),
        )  # fmt: skip
        assert done[name].returncode == 0, done[name].stderr
        finished = [event.question for event in read_events(tmp_path / name) if isinstance(event, QuestionFinished)]
        assert len(finished) == len(set(finished)) == 3
    assert "started again" not in done["whole"].stderr and (tmp_path / "killed died").exists()
    assert "the policy server ended with signal SIGKILL; it is started again" in done["killed"].stderr
    assert waves(tmp_path / "killed") == waves(tmp_path / "whole")
