"""Marks tests with the tier of their folder, chooses how many run beside each other, tells what was not tested."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from palmette.memory.host import free_bytes

# Before torch is loaded, here and in every process that a test starts. Tests use the cores by running beside each
# other: a second thread of one, or one that spins while it waits, takes a core from its neighbor.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
# What makes commands write for a terminal where there is none, or for a narrow one.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

# The same examples on every machine, however long it takes over them.
settings.register_profile("anywhere", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("anywhere")

TIERS = ("unit", "torch", "real", "server", "scale")
WORKER_BYTES = 3 * 2**30
"""What a worker and the processes it starts hold at the most, with room to spare."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = Path(item.path).parent.name
        assert tier in TIERS, f"{item.path} lies in no tier"
        item.add_marker(tier)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A worker for each core that this process may use and one more, as far as memory goes.

    A quarter of the time a worker waits: for a process to end, for a bomb to be stopped. The one more works then.
    """
    return max(1, min(len(os.sched_getaffinity(0)) + 1, free_bytes() // WORKER_BYTES))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say last how many browser tests were skipped, and why."""
    yield
    skipped = [report for report in terminalreporter.getreports("skipped") if "browser" in report.keywords]
    if skipped:
        reasons = {str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped}
        terminalreporter.write_line(f"{len(skipped)} browser tests were skipped: {'; '.join(sorted(reasons))}")
