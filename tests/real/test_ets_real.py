"""ETS with the shipped models and the real embedder."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.event_log import read_events
from palmette.events import Session, WaveDone
from tests.command import palmette
from tests.unit.test_etsfile import PUBLISHED

pytestmark = pytest.mark.real

SMALL = ("--questions", "3", "--width", "8", "--set", "task.grade=2")
LOADED = """
import json, sys
from palmette.commands.app import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, end.code
    print("LOADED", "sentence_transformers" in sys.modules)
"""


def from_nothing(*commands: tuple[str, ...], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run commands in a process that has imported nothing; a last line of each tells whether embedders are imported."""
    command = [sys.executable, "-c", LOADED, json.dumps(commands)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def search(cwd: Path, name: str, *arguments: str) -> list[Any]:
    done = palmette("search", "--out", name, *SMALL, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return list(read_events(cwd / name))


def waves(events: list[Any]) -> list[tuple[Any, ...]]:
    """Return all that a strategy decides, and what came of it."""
    return [
        (event.question, event.wave, event.nodes, event.children, event.kv_tokens)
        for event in events
        if isinstance(event, WaveDone)
    ]


def test_without_diversity_the_embedder_is_not_even_imported(tmp_path: Path) -> None:
    ets = ("search", "--strategy", "ets", *SMALL)
    plain = (*ets, "--set", "search.lambda_diversity=0", "--out", "plain")
    done = from_nothing(plain, (*ets, "--out", "diverse"), cwd=tmp_path)
    assert re.findall("LOADED (.*)", done.stdout) == ["False", "True"], done.stderr
    found = [event for event in read_events(tmp_path / "diverse") if isinstance(event, WaveDone)]
    assert any(len(set(wave.clusters.values())) > 1 for wave in found)
    assert not any(wave.clusters for wave in read_events(tmp_path / "plain") if isinstance(wave, WaveDone))


def test_with_both_weights_zero_or_a_generous_budget_it_is_rebase(tmp_path: Path) -> None:
    plain = waves(search(tmp_path, "rebase", "--strategy", "rebase"))
    none = ("--set", "search.lambda_kv=0", "--set", "search.lambda_diversity=0")
    assert waves(search(tmp_path, "weights", "--strategy", "ets", *none)) == plain
    assert waves(search(tmp_path, "budget", "--strategy", "ets", "--set", "search.kv_budget=1GiB")) == plain


@pytest.mark.parametrize("times", [1, 2])
def test_a_budget_is_never_exceeded(tmp_path: Path, times: int) -> None:
    free = search(tmp_path, "rebase", "--strategy", "rebase")
    session = next(event for event in free if isinstance(event, Session))
    budget = session.peak_kv_tokens * session.kv_bytes_per_token * times
    kept = search(
        tmp_path, "ets", "--strategy", "ets", "--set", f"search.kv_budget={budget}",
        "--set", "search.first_step_tokens=8", "--set", "search.lambda_diversity=0",
    )  # fmt: skip
    held = next(event for event in kept if isinstance(event, Session))
    assert 0 < held.peak_kv_tokens * held.kv_bytes_per_token <= budget
    room = budget // 3 // held.kv_bytes_per_token
    assert all(wave.kv_tokens <= room for wave in kept if isinstance(wave, WaveDone))
    assert any(node.finished for wave in kept if isinstance(wave, WaveDone) for node in wave.nodes)


def test_a_budget_too_small_is_refused_with_values_that_fit(tmp_path: Path) -> None:
    wanted = ("search", "--strategy", "ets", "--set", "search.lambda_diversity=0", *SMALL)
    refused = palmette(*wanted, "--set", "search.kv_budget=100KiB", "--out", "a", cwd=tmp_path)
    assert refused.returncode == 3
    assert not (tmp_path / "a").exists()
    fits = re.search(r"Fits: search\.kv_budget (\w+)", " ".join(refused.stderr.split()))
    assert fits, refused.stderr
    assert palmette(*wanted, "--set", f"search.kv_budget={fits[1]}", "--out", "b", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(("width", "lambdas"), [(16, 1.5), (64, 1.4), (256, 1.45)])
def test_the_published_files_run(tmp_path: Path, width: int, lambdas: float) -> None:
    (tmp_path / "ets.yaml").write_text(PUBLISHED.format(width=width, lambdas=lambdas))
    done = palmette(
        "search", "--ets-config", "ets.yaml", "--embed_device", "cpu", "--questions", "1", "--set", "task.grade=1",
        "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"ets.yaml: lambdas: {lambdas} becomes search.lambda_diversity: {lambdas}" in done.stderr
    printed = json.loads(done.stdout)
    assert printed["config"]["search"]["width"] == width
    assert printed["run"] == f"exp_results/ets_{width}_math500"


def test_two_files_for_one_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("width: 4")
    done = palmette("search", "--config", "a.yaml", "--ets-config", "a.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "give one of them" in done.stderr
