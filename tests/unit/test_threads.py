"""Cores as the kernel reports them, and how many threads are used beside other processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.busy import Case, fair_cores
from palmette.cores import CpuShares, CpuUse, quota_cores, read_cpu_use, shares_between
from palmette.engine.thread_count import LONGEST_PATIENCE_SECONDS, ThreadCount, next_count
from tests.architecture import ROOT


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_quota_of_all_groups_counts(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None
    write(tmp_path / "proc/self/cgroup", "0::/pod/box\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert quota_cores(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    write(tmp_path / "sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n")
    assert quota_cores(tmp_path) == 1.5


def test_a_quota_of_the_first_version_is_read_and_none_is_minus_one(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "3:cpu,cpuacct:/box\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert quota_cores(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
    assert quota_cores(tmp_path) == 0.5


def test_shares_are_what_the_kernels_totals_say() -> None:
    before = CpuUse(10.0, 5.0, {"1": 1.0, "2": 2.0, "9": 7.0}, idle_seconds=100.0, cores=4)
    after = CpuUse(12.0, 8.0, {"1": 1.5, "2": 2.0, "3": 0.5}, idle_seconds=101.0, cores=4)
    # In 2 s: 3 s of CPU time, 0.5 s waited by thread 1 and by the new thread 3, 1 s idle, so that others had 8 - 1 - 3.
    assert shares_between(before, after) == CpuShares(2.0, own=1.5, missing=0.5, others=2.0, cores=4)


def test_a_kernel_that_reports_nothing_is_none(tmp_path: Path) -> None:
    assert read_cpu_use(tmp_path) is None
    write(tmp_path / "proc/stat", "cpu  1 1 1 1 1\ncpu0 100 0 0 250 50 0 0\n")
    (tmp_path / "proc/self/task/7").mkdir(parents=True)  # Threads without schedstat.
    assert read_cpu_use(tmp_path) is None


def test_this_process_is_read_where_the_kernel_reports_it() -> None:
    found = read_cpu_use()
    if found is None:
        pytest.skip("the kernel reports no waiting times")
    assert found.cores >= 1 and found.run_seconds > 0 and found.wait_seconds


def shares(own: float, missing: float, others: float, cores: int = 2, seconds: float = 0.25) -> CpuShares:
    return CpuShares(seconds, own, missing, others, cores)


def test_alone_all_threads_stay() -> None:
    assert next_count(ThreadCount(2), 2, shares(1.9, 0.03, 0.05)).count == 2
    # Threads that wait although nobody else runs wait for each other: fewer of them would not help.
    assert next_count(ThreadCount(2), 2, shares(1.2, 0.6, 0.1)).count == 2


@pytest.mark.parametrize(("cores", "processes"), [(2, 2), (2, 4), (8, 2), (8, 4), (8, 8)], ids=lambda value: str(value))
def test_equal_processes_end_with_a_thread_for_each_core_in_all(cores: int, processes: int) -> None:
    counts = [ThreadCount(cores) for _ in range(processes)]
    for turn in range(20 * processes):
        mine = turn % processes
        total = sum(each.count for each in counts)
        speed = min(1.0, cores / total)
        own = counts[mine].count * speed
        seen = shares(own, counts[mine].count - own, total * speed - own, cores)
        counts[mine] = next_count(counts[mine], cores, seen)
    # One after the other is the worst case: who looks first gives up the most.
    assert max(cores, processes) <= sum(each.count for each in counts) <= max(cores, processes) + 1
    assert all(each.count <= max(1, 2 * cores // processes) for each in counts)
    equal = cores / processes
    at_once = next_count(ThreadCount(cores), cores, shares(equal, cores - equal, cores - equal, cores))
    assert at_once.count == max(1, equal)


def test_beside_one_busy_process_one_thread_is_given_up_and_taken_again_when_it_is_gone() -> None:
    now = next_count(ThreadCount(2), 2, shares(1.33, 0.67, 0.67))
    assert now.count == 1
    for _ in range(10):
        now = next_count(now, 2, shares(1.0, 0.0, 1.0))
    assert now.count == 1
    assert next_count(now, 2, shares(1.0, 0.0, 0.02)).count == 2
    assert next_count(ThreadCount(8), 8, shares(4.0, 0.5, 0.5, cores=8)).count == 7


def test_a_thread_that_has_to_be_given_up_again_is_taken_ever_more_rarely() -> None:
    now, grown_after = ThreadCount(1), []
    for _ in range(7):
        held = 0
        while now.count == 1:
            now = next_count(now, 2, shares(1.0, 0.0, 0.1))
            held += 1
        grown_after.append(held * 0.25)
        now = next_count(now, 2, shares(1.3, 0.7, 0.7))
    assert grown_after == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_PATIENCE_SECONDS, LONGEST_PATIENCE_SECONDS]


def test_a_fair_share_gives_nobody_more_than_it_can_use() -> None:
    assert [fair_cores(2, case) for case in (Case(0, 0), Case(1, 0), Case(0, 1), Case(0, 3))] == [2, 1, 1, 0.5]
    assert fair_cores(2, Case(2, 0)) == 2 / 3
    assert fair_cores(8, Case(2, 0)) == 6
    assert fair_cores(8, Case(0, 3)) == 2


TELLS_HOW_IT_IS_LOADED = """
import os
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
print([os.environ.get(name) for name in NAMES], flush=True)
raise ImportError("seen enough")
"""
IMPORTS = """
import os, sys
try:
    import {module}
except ImportError as error:
    assert str(error) == "seen enough", error
print([name for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME") if name in os.environ])
"""


@pytest.mark.parametrize(
    "module",
    [
        "palmette.backends.local",
        "palmette.engine.tree_model",
        "palmette.score.scorers.head",
        "palmette.score.scorers.likelihood",
        "palmette.score.scorers.profile",
        "palmette.score.sentences",
        "palmette.train.update.learner",
        "palmette.zoo.load",
        "palmette.zoo.load_headed",
    ],
)
@pytest.mark.parametrize(
    ("given", "seen"),
    [({}, ["PASSIVE", "10000", None]), ({"GOMP_SPINCOUNT": "9"}, [None, "9", None])],
    ids=["by itself", "as the user has it"],
)
def test_torch_is_loaded_with_threads_that_wait_quietly_and_the_environment_is_as_before(
    module: str, given: dict[str, str], seen: list[str | None], tmp_path: Path
) -> None:
    write(tmp_path / "torch/__init__.py", TELLS_HOW_IT_IS_LOADED)
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", **given}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(module=module)],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(seen), str(list(given))]
