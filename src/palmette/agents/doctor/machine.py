"""What this machine has for a run: cores, memory, limits, devices, disk, threads, versions; nothing is loaded."""

import os
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from palmette import __version__
from palmette.config import load_config
from palmette.cores import quota_cores
from palmette.memory.host import cgroup_limits, memory_info
from palmette.openmp import is_count_chosen
from palmette.planner.devices import detect_gpus, detect_host
from palmette.processor import lacking, read_cpuinfo
from palmette.report.memory_plan import plan_config
from palmette.units import format_bytes

_PACKAGES = ("torch", "transformers", "numpy", "peft", "sentence-transformers", "vllm", "sglang", "trl", "verl", "mcp")
_LEAST_DISK_BYTES = 2 * 2**30
_LEAST_FILES = 1024


@dataclass(frozen=True)
class Fact:
    """One thing about the machine; `wrong` says what is the matter with it and what to do, None for nothing."""

    name: str
    value: str
    wrong: str | None = None


def machine_facts() -> Iterator[Fact]:
    """Yield what a run would find here, and what stands in its way."""
    yield from _cores()
    yield _processor(read_cpuinfo())
    yield from _memory()
    yield from _devices()
    yield _disk()
    yield _versions()
    yield _default_run()


def _cores() -> Iterator[Fact]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, load = quota_cores(), os.getloadavg()[0]
    share = "" if quota is None else f", a quota of {quota:g}"
    busy = ": others use them too, and a run takes its fair share" if load > usable + 1 else ""
    yield Fact("cores", f"{usable} of {os.cpu_count()}{share}, load {load:.1f}{busy}")
    told = {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "GOMP_", "MKL_NUM", "KMP_"))}
    threads = os.environ.get("OMP_NUM_THREADS", "")
    many = threads.isdecimal() and int(threads) > usable
    wrong = f"OMP_NUM_THREADS={usable}: more threads than cores wait for each other" if many else None
    if told.get("OMP_WAIT_POLICY", "").lower() == "active":
        wrong = "OMP_WAIT_POLICY=passive: threads that wait keep their cores"
    shown = ", ".join(f"{name}={value}" for name, value in sorted(told.items()))
    yield Fact("threads", shown or ("chosen" if is_count_chosen(os.environ) else "as palmette chooses"), wrong)


def _processor(cpuinfo: str) -> Fact:
    named = (line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    slow = lacking(cpuinfo)
    told = f", no instructions for {', '.join(slow)}: float32 is several times as fast on it" if slow else ""
    return Fact("processor", next(named, "not told") + told)


def _memory() -> Iterator[Fact]:
    info, host = memory_info(), detect_host()
    total, free = host.total_bytes or 0, host.free_bytes or 0
    groups = min((limit for limit, _ in cgroup_limits()), default=None)
    limited = "" if groups is None or groups >= info.get("MemTotal", 0) else f", limited to {format_bytes(groups)}"
    low = "less than 2 GiB are free: end other processes, or declare less with memory.devices" if free < 2**31 else None
    yield Fact("memory", f"{format_bytes(free)} free of {format_bytes(total)}{limited}", low)
    swap = info.get("SwapTotal", 0)
    yield Fact("swap", f"{format_bytes(swap)}, {format_bytes(info.get('SwapFree', 0))} free")
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "none" if space == resource.RLIM_INFINITY else format_bytes(space)
    yield Fact(
        "limits",
        f"address space {shown}, open files {files}",
        f"ulimit -n {_LEAST_FILES}" if 0 <= files < _LEAST_FILES else None,
    )


def _devices() -> Iterator[Fact]:
    gpus = detect_gpus()
    for gpu in gpus:
        free, total = gpu.free_bytes or 0, gpu.total_bytes or 1
        wrong = f"other processes hold {format_bytes(total - free)} of it" if free < 0.8 * total else None
        yield Fact(gpu.name, f"{format_bytes(free)} free of {format_bytes(total)}", wrong)
    if not gpus:
        yield Fact("GPUs", "none; searches and training run on the CPU")


def _disk() -> Fact:
    usage = shutil.disk_usage(Path.cwd())
    wrong = "less than 2 GiB are free here: checkpoints need room" if usage.free < _LEAST_DISK_BYTES else None
    return Fact("disk", f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}", wrong)


def _versions() -> Fact:
    found = [f"palmette {__version__}", f"Python {sys.version.split()[0]}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return Fact("versions", ", ".join(found))


def _default_run() -> Fact:
    plan = plan_config(load_config())
    return Fact("default search", f"holds at most {format_bytes(plan.peak_bytes)}", plan.refusal)
