"""Search on real Ray: the same trees, an actor and a driver killed in the middle, and addresses of no cluster."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from palmette import Progress, load_task
from palmette.errors import BackendError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import WorkerEnded
from tests.scale.conftest import ROOT
from tests.scale.held_policy import HOLD
from tests.scale.runs import FLAGS, finished, searcher, trees

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, held: Path, cluster: Any) -> Path:
    """A run in one process."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    searcher().search(load_task("ladder", questions=8), out=folder)
    return folder


def test_a_killed_actor_s_questions_are_asked_again_and_the_trees_are_the_same(
    cluster: Any, held: Path, plain: Path, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        waiting = [int(path.name) for path in held.iterdir() if path.name.isdecimal()]
        if len(waiting) == 2 and not killed:
            killed.append(waiting[0])
            os.kill(waiting[0], signal.SIGKILL)
        if killed and progress.notices and (held / HOLD).exists():
            (held / HOLD).unlink()

    (held / HOLD).touch()
    results = searcher(cluster.address).search(
        load_task("ladder", questions=8), out=tmp_path / "run", progress=kill_one
    )
    assert killed and len(results) == 8
    assert trees(tmp_path / "run") == trees(plain) and len(finished(tmp_path / "run")) == 8
    lost = [event.lost for event in read_events(tmp_path / "run") if isinstance(event, WorkerEnded) and event.lost]
    assert lost == ["its process ended"]


def test_a_killed_driver_s_run_is_resumed_with_what_is_finished_kept_and_a_second_driver_is_refused(
    cluster: Any, held: Path, plain: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = finished(plain)[0]
    (held / HOLD).write_text(first)  # Every other question waits in the workers.
    settings = {**FLAGS, "scale.address": cluster.address, "scale.workers": 2, "scale.worker_cpus": 0.25}
    told = [f"--set={key}={'null' if value is None else value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "palmette", "search", "--out", str(folder), *told]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as driver:
        log = folder / FILE_NAME
        while not log.exists() or b"question_finished" not in log.read_bytes():
            assert driver.poll() is None, driver.communicate()[1]
            time.sleep(0.1)
        with pytest.raises(Exception, match="is being written by another process"):
            next(searcher(cluster.address).resume(folder))
        driver.kill()
    (held / HOLD).unlink()
    kept = log.read_bytes()
    for _ in searcher(cluster.address).resume(folder):
        pass
    assert log.read_bytes().startswith(kept)
    assert trees(folder) == trees(plain) and sorted(finished(folder)) == sorted(finished(plain))


def test_addresses_of_no_cluster_are_told_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{listening.getsockname()[1]}"
        for address in (closed, f"ray://{closed}"):
            with pytest.raises(
                BackendError, match=rf"cannot reach a Ray cluster at {address}: Connection refused. Start"
            ):
                searcher(address).search("1+1", out=tmp_path / "run")
        listening.listen()
        with pytest.raises(BackendError, match=r"did not speak Ray's protocol within 0.5 s \(scale.start_seconds\)"):
            searcher(closed, start_seconds=0.5).search("1+1", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
