"""Searches on Ray whose workers and nodes are killed at random moments: every tree is as without."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from palmette import Progress, Searcher, load_task
from palmette.errors import BackendError
from palmette.event_log import read_events
from palmette.events import WaveDone, WorkerEnded
from tests.scale.held_policy import HOLD
from tests.scale.other_workers import EarlyWorker, OlderWorker
from tests.scale.runs import finished, searcher, trees

pytestmark = [
    pytest.mark.kills,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def held_processes(held: Path) -> list[int]:
    """Return the processes of workers that wait, or have waited."""
    return [int(path.name) for path in held.iterdir() if path.name.isdecimal()]


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_that_is_killed_at_a_random_moment_changes_no_tree(
    cluster: Any, held: Path, tmp_path: Path, seed: int
) -> None:
    """Workers wait at a random one of their calls, the first of them that does is killed there.

    A call has the wave of at most two questions: one of two workers makes at least one for four waves.
    """
    task = load_task("ladder", questions=8)
    searcher().search(task, out=tmp_path / "plain")
    waves = sum(isinstance(event, WaveDone) for events in trees(tmp_path / "plain").values() for event in events)
    before, killed = set(held_processes(held)), list[int]()

    def kill_one(progress: Progress) -> None:
        new = [process for process in held_processes(held) if process not in before]
        if new and not killed:
            killed.append(new[0])
            os.kill(new[0], signal.SIGKILL)
        if progress.notices:
            (held / HOLD).unlink(missing_ok=True)

    (held / HOLD).write_text(f"calls {random.Random(seed).randrange(waves // 4)}")
    searcher(cluster.address).search(task, out=tmp_path / "run", progress=kill_one)
    assert killed
    assert trees(tmp_path / "run") == trees(tmp_path / "plain") and len(finished(tmp_path / "run")) == 8


def test_a_node_that_is_killed_takes_its_workers_along_and_changes_no_tree(
    cluster: Any, held: Path, tmp_path: Path
) -> None:
    task = load_task("ladder", questions=24)  # Enough for six workers, which take three each at the most.
    searcher().search(task, out=tmp_path / "plain")
    third = cluster.add_node(num_cpus=2, object_store_memory=80 * 2**20)
    before, removed = set(held_processes(held)), list[str]()

    def kill_node(progress: Progress) -> None:
        if len(set(held_processes(held)) - before) == 6 and not removed:
            cluster.remove_node(third, allow_graceful=False)
            removed.append("third")
        if removed and progress.notices:
            (held / HOLD).unlink(missing_ok=True)

    (held / HOLD).touch()
    searcher(cluster.address, workers=6, worker_cpus=1).search(task, out=tmp_path / "run", progress=kill_node)
    assert trees(tmp_path / "run") == trees(tmp_path / "plain")
    assert any(event.lost for event in read_events(tmp_path / "run") if isinstance(event, WorkerEnded))


def test_workers_of_this_machine_alone_grow_the_trees_of_the_plain_search(tmp_path: Path) -> None:
    """The shipped models, Ray started by the search itself."""
    told = {"search.strategy": "rebase", "search.width": 4, "search.questions_in_flight": 2}
    task = load_task("ladder", questions=6)
    for name, scale in (("plain", {}), ("two", {"scale.workers": 2}), ("four", {"scale.workers": 4})):
        Searcher(settings={**told, **scale}).search(task, out=tmp_path / name)
    rounded = {name: _rounded(trees(tmp_path / name)) for name in ("plain", "two", "four")}
    assert rounded["plain"] == rounded["two"] == rounded["four"]


def _rounded(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return trees without log-probabilities, whose last decimal depends on the batch."""
    return {question: [_steps(event) for event in events] for question, events in found.items()}


def _steps(event: Any) -> Any:
    steps = [(node.id, node.parent, node.tokens, node.score) for node in getattr(event, "nodes", ())]
    return steps or getattr(event, "choices", None)


def test_a_worker_that_finds_no_place_is_told_with_what_there_is(cluster: Any, held: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BackendError, match=r"found no place within 2.0 s \(scale.start_seconds\): .* 64 cores each .* node"
    ):
        searcher(cluster.address, worker_cpus=64, start_seconds=2).search("1+1", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_actors_of_another_version_are_refused_and_nothing_is_written(
    cluster: Any, held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palmette.run.cluster.search.SearchWorker", OlderWorker)
    with pytest.raises(BackendError, match=r"worker \d on .* has palmette 0\.0\.1, the driver .*: install"):
        searcher(cluster.address).search("1+1", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_actors_whose_clock_is_wrong_are_told_of_and_change_no_tree(
    cluster: Any, held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, heard = load_task("ladder", questions=8), list[Progress]()
    searcher().search(task, out=tmp_path / "plain")
    monkeypatch.setattr("palmette.run.cluster.search.SearchWorker", EarlyWorker)
    searcher(cluster.address).search(task, out=tmp_path / "run", progress=heard.append)
    assert trees(tmp_path / "run") == trees(tmp_path / "plain")
    assert any("ahead of ours: times of its events are corrected" in notice for notice in heard[-1].notices)
