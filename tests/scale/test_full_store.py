"""A cluster whose object store and disk are full: one line says so, nothing is lost, the run goes on afterwards."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palmette import load_task
from palmette.errors import BackendError
from tests.scale.conftest import ray_environment
from tests.scale.runs import finished, searcher, trees

pytestmark = [
    pytest.mark.kills,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

_FILL = """
import sys, threading, time
import numpy, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
kept = []
def fill():
    for size in (2**22, 2**17, 2**12, 2**8):
        try:
            while True:
                kept.append(ray.put(numpy.zeros(size, dtype=numpy.uint8)))
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
            pass
def fill_again():
    while True:  # What Ray frees later is filled too.
        fill()
        time.sleep(0.02)
fill()
print("full", flush=True)
threading.Thread(target=fill_again, daemon=True).start()
sys.stdin.readline()
"""


@pytest.fixture
def full(held: Path) -> Iterator[Any]:
    """A node with the smallest object store that Ray allows, no disk to spill to, and every message in the store."""
    config: dict[str, Any] = {"local_fs_capacity_threshold": 0.0001}
    config |= {"max_direct_call_object_size": 0, "task_rpc_inlined_bytes_limit": 0}
    with ray_environment(held):
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "_system_config": config}
        started = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            yield started
        finally:
            started.shutdown()


def test_a_full_object_store_is_told_in_one_line_and_the_run_goes_on_when_it_is_not(
    full: Any, held: Path, tmp_path: Path
) -> None:
    task, folder = load_task("ladder", questions=8), tmp_path / "run"
    searcher().search(task, out=tmp_path / "plain")
    command = [sys.executable, "-c", _FILL, full.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as by:
        assert by.stdout is not None and by.stdout.readline() == "full\n"
        with pytest.raises(BackendError, match=r"Ray's object store is full: end what fills it") as told:
            searcher(full.address).search(task, out=folder)
        assert "\n" not in str(told.value)
        by.communicate("\n")
    searcher(full.address).search(task, out=folder)
    assert trees(folder) == trees(tmp_path / "plain") and len(finished(folder)) == 8
