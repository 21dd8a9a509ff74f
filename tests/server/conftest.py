"""The run that searches on real servers are compared with."""

from pathlib import Path

import pytest

from tests.server.started import searched


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The search of these tests in one process."""
    return searched(tmp_path_factory.mktemp("local") / "run")
