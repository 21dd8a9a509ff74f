"""A Ray cluster of this machine for the tests of this folder, started once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.scale.held_policy import FOLDER

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the policy of workers, see `held_policy`."""
    return tmp_path_factory.mktemp("held")


@contextmanager
def ray_environment(held: Path) -> Iterator[None]:
    """Set what nodes need to import palmette and the tests; afterwards everything is as before."""
    told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", FOLDER: str(held)}
    told["RAY_worker_niceness"] = "0"
    told["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@pytest.fixture(scope="session")
def cluster(held: Path) -> Iterator[Any]:
    """Two nodes, which listen on the loopback interface alone."""
    with ray_environment(held):
        from ray.cluster_utils import Cluster

        node: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
        started = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            started.add_node(**node)
            yield started
        finally:
            started.shutdown()
