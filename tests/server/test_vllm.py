"""Searches on a real vLLM that palmette starts and stops."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from palmette.event_log import FILE_NAME, read_events
from palmette.events import QuestionFinished
from palmette.launch.keeper import members
from palmette.search.summary import summarize
from tests.server.held import check_what_the_cache_holds
from tests.server.started import SEARCH, Up, command_of, searched, trees

pytestmark = pytest.mark.xdist_group("vllm")


def at(up: Up) -> list[str]:
    return ["--backend", "vllm", "--set", f"policy.address={up.addresses['policy']}"]


def test_ets_on_vllm_that_up_starts_grows_the_trees_of_the_local_engine(vllm: Up, local: Path, tmp_path: Path) -> None:
    assert len(vllm.groups) == 1 and len(members(vllm.groups[0])) > 1
    assert vllm.kv == vllm.planned_kv
    run = searched(tmp_path / "run", *at(vllm))
    assert trees(run) == trees(local) and len(trees(local)) == 4
    summary = summarize(read_events(run))
    assert summary.server_preemptions == 0 and 0 < (summary.server_hit_share or 0) < 1
    for strategy in ("ets", "rebase"):
        check_what_the_cache_holds("vllm", vllm.addresses["policy"], strategy, block_tokens=32)


def test_a_server_killed_in_the_middle_of_a_search_is_started_again_and_no_tree_changes(
    vllm: Up, local: Path, tmp_path: Path
) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    words = ["search", *SEARCH, *at(vllm), "--set", "policy.return_seconds=3000", "--out", str(run)]
    waves = random.Random(1).randint(1, 12)
    [first] = vllm.groups
    with said.open("w") as output, subprocess.Popen(command_of(*words), stdout=output, stderr=output) as search:
        while _waves(run) < waves:
            assert search.poll() is None, said.read_text()
            time.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        vllm.until("the policy server ended with signal SIGKILL; it is started again")
        vllm.until("ready again")
        assert search.wait() == 0, said.read_text()
    finished = [event.question for event in read_events(run) if isinstance(event, QuestionFinished)]
    assert len(finished) == len(set(finished)) == 4
    assert trees(run) == trees(local) and not members(first)


def _waves(run: Path) -> int:
    """Return how many waves a run has recorded."""
    try:
        return (run / FILE_NAME).read_text(encoding="utf-8").count('"kind":"wave_done"')
    except OSError:
        return 0
