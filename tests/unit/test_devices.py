"""Devices, declared and detected."""

from pathlib import Path

import pytest

from palmette.errors import ConfigError
from palmette.planner.devices import Device, detect_host, host_of, parse_devices

GIB = 2**30


def test_devices_are_read_as_people_write_them() -> None:
    assert parse_devices("2x24GiB") == (Device("cuda:0", "cuda", 24 * GIB), Device("cuda:1", "cuda", 24 * GIB))
    assert parse_devices("80GiB, 1X24 GiB") == (Device("cuda:0", "cuda", 80 * GIB), Device("cuda:1", "cuda", 24 * GIB))
    assert parse_devices("cpu:24GiB") == (Device("cpu", "cpu", 24 * GIB),)
    assert [device.name for device in parse_devices("cpu:64GiB,2x24GiB")] == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize(
    "text", ["", "two", "0x24GiB", "2x", "gpu:24GiB", "2x24XiB", "x24GiB", "9999999x1GiB", "24GiB,,"]
)
def test_devices_that_cannot_be_read_are_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: write them like '2x24GiB', '1x80GiB' or 'cpu:24GiB'"):
        parse_devices(text)


def test_a_device_of_nothing_and_a_second_cpu_are_errors() -> None:
    with pytest.raises(ConfigError, match="a device of 0 bytes"):
        parse_devices("2x0GiB")
    with pytest.raises(ConfigError, match="name the cpu once, with all of its memory"):
        parse_devices("cpu:1GiB,cpu:2GiB")


def test_a_limit_is_a_share_of_all_and_never_more_than_what_is_free() -> None:
    assert Device("cpu", "cpu", 1000).limit_bytes(0.95) == 950
    assert Device("cpu", "cpu", 1000, free_bytes=700).limit_bytes(0.95) == 700
    assert Device("cpu", "cpu", None).limit_bytes(0.95) is None


def test_gpus_declared_alone_have_a_host_of_unknown_size() -> None:
    assert host_of(parse_devices("2x24GiB")).total_bytes is None
    assert host_of(parse_devices("2x24GiB,cpu:64GiB")).total_bytes == 64 * GIB


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_host_is_what_the_kernel_reports(tmp_path: Path) -> None:
    write(
        tmp_path / "proc/meminfo",
        "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\nHugePages_Total: 0\n",
    )
    assert detect_host(tmp_path) == Device("cpu", "cpu", 1000 * 1024, 600 * 1024)


@pytest.mark.parametrize(
    ("limit", "used", "cached"),
    [
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "inactive_file"),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "sys/fs/cgroup/memory/memory.usage_in_bytes",
            "total_active_file",
        ),
    ],
)
def test_a_smaller_limit_of_a_cgroup_counts(tmp_path: Path, limit: str, used: str, cached: str) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    write(tmp_path / limit, "307200\n")
    write(tmp_path / used, "102400\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 307_200, 204_800)
    write((tmp_path / limit).parent / "memory.stat", f"anon 7\n{cached} 92400\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 307_200, 297_200)  # The kernel can drop the page cache.
    write(tmp_path / limit, "max\n")
    assert detect_host(tmp_path).total_bytes == 1000 * 1024


def test_a_host_without_proc_has_an_unknown_size(tmp_path: Path) -> None:
    assert detect_host(tmp_path).total_bytes is None


@pytest.mark.parametrize(
    ("text", "meant", "sizes"),
    [
        ("2x24", "2x24GiB", [24, 24]),
        ("24", "24GiB", [24]),
        ("cpu:24", "cpu:24GiB", [24]),
        ("2x24GiB,cpu:64", "2x24GiB,cpu:64GiB", [24, 24, 64]),
        ("1x1.5", "1x1.5GiB", [1.5]),
    ],
)
def test_a_size_without_a_unit_is_refused_with_what_may_be_meant(text: str, meant: str, sizes: list[float]) -> None:
    with pytest.raises(ConfigError, match=f"of what\\? Write '{meant}' if GiB are meant"):
        parse_devices(text)
    assert [device.total_bytes for device in parse_devices(meant)] == [size * GIB for size in sizes]


GROUPS = [
    ("sys/fs/cgroup", "memory.max", "memory.current", "0::/{}\n"),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "9:cpuset:/\n4:hugetlb,memory:/{}\n0::/\n",
    ),
]


@pytest.mark.parametrize(("folder", "limit", "used", "own"), GROUPS)
def test_limits_of_nested_groups_count_wherever_they_are_set(
    tmp_path: Path, folder: str, limit: str, used: str, own: str
) -> None:
    """As Slurm and systemd set them: on a group above the process's own, which others share."""
    groups = tmp_path / folder
    write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    write(tmp_path / "proc/self/cgroup", own.format("system.slice/slurm/job_7/step_0"))
    write(groups / "system.slice/slurm/job_7/step_0" / limit, "max\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 1_024_000, 921_600)
    write(groups / "system.slice/slurm/job_7" / limit, "500000\n")
    write(groups / "system.slice/slurm/job_7" / used, "100000\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 500_000, 400_000)
    write(groups / "system.slice" / limit, "800000\n")  # Larger, and nearly used up by others.
    write(groups / "system.slice" / used, "790000\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 500_000, 10_000)
    write(groups / "system.slice/slurm/job_7/step_0" / limit, "300000\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 300_000, 10_000)
    write(groups / "system.slice/other" / limit, "1000\n")  # Not above this process.
    assert detect_host(tmp_path) == Device("cpu", "cpu", 300_000, 10_000)


def test_a_group_that_is_not_mounted_here_leaves_the_outermost_one(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/0123\n0::/../../outside\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "200000\n")
    assert detect_host(tmp_path) == Device("cpu", "cpu", 200_000, 200_000)
