"""The memory and the cores of the machine, or of the control group that this process is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.machine import available_cores, available_memory
from service.settings import Settings

GIB = 2**30


def root_of(tmp_path: Path, **files: str) -> Path:
    """A directory with `proc` and `sys`. files: content by path, with two underscores for a slash."""
    given = {"proc__meminfo": f"MemFree: 1 kB\nMemTotal: {16 * 2**20} kB\n"} | files
    for name, content in given.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


MEMORY = {
    "no control groups": ({}, 16 * GIB),
    "version 2 without a limit": (
        {"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__memory.max": "max\n"},
        16 * GIB,
    ),
    "version 2": ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__memory.max": f"{GIB}\n"}, GIB),
    "version 2, the group around it": (
        {
            "proc__self__cgroup": "0::/a/b\n",
            "sys__fs__cgroup__a__memory.max": f"{2 * GIB}\n",
            "sys__fs__cgroup__a__b__memory.max": f"{3 * GIB}\n",
        },
        2 * GIB,
    ),
    "version 2, slowed down above a size": (
        {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__memory.high": f"{3 * GIB}\n"},
        3 * GIB,
    ),
    "version 1": (
        {
            "proc__self__cgroup": "5:cpu:/x\n4:memory:/x\n",
            "sys__fs__cgroup__memory__x__memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys__fs__cgroup__memory__memory.limit_in_bytes": f"{2**63 - 4096}\n",
        },
        4 * GIB,
    ),
    "version 1 in a container, which sees the path of the host": (
        {
            "proc__self__cgroup": "4:memory:/docker/0123\n",
            "sys__fs__cgroup__memory__memory.limit_in_bytes": f"{GIB}\n",
        },
        GIB,
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_the_memory_of_the_service_is_the_smallest_limit_around_it(name, tmp_path):
    files, expected = MEMORY[name]

    assert available_memory(root_of(tmp_path, **files)) == expected


CORES = {
    "no control groups": ({}, 16),
    "version 2 without a limit": (
        {"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__cpu.max": "max 100000\n"},
        16,
    ),
    "version 2": ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__cpu.max": "400000 100000\n"}, 4),
    "version 2, a part of a core": (
        {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "150000 100000\n"},
        2,
    ),
    "version 2, less than a core": (
        {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "1000 100000\n"},
        1,
    ),
    "version 2, more than the machine has": (
        {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "6400000 100000\n"},
        16,
    ),
    "version 2, the group around it": (
        {
            "proc__self__cgroup": "0::/a/b\n",
            "sys__fs__cgroup__a__cpu.max": "100000 50000\n",
            "sys__fs__cgroup__a__b__cpu.max": "800000 100000\n",
        },
        2,
    ),
    "version 1 without a limit": (
        {
            "proc__self__cgroup": "2:cpu:/x\n",
            "sys__fs__cgroup__cpu__x__cpu.cfs_quota_us": "-1\n",
            "sys__fs__cgroup__cpu__x__cpu.cfs_period_us": "100000\n",
        },
        16,
    ),
    "version 1": (
        {
            "proc__self__cgroup": "4:memory:/x\n2:cpu,cpuacct:/x/y\n0::/\n",
            "sys__fs__cgroup__cpu__x__y__cpu.cfs_quota_us": "-1\n",
            "sys__fs__cgroup__cpu__x__y__cpu.cfs_period_us": "100000\n",
            "sys__fs__cgroup__cpu__x__cpu.cfs_quota_us": "250000\n",
            "sys__fs__cgroup__cpu__x__cpu.cfs_period_us": "100000\n",
        },
        3,
    ),
    "version 1 in a container, mounted by both names": (
        {
            "proc__self__cgroup": "2:cpu,cpuacct:/docker/0123\n",
            "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_quota_us": "50000\n",
            "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_period_us": "25000\n",
        },
        2,
    ),
}


@pytest.mark.parametrize("name", CORES)
def test_the_cores_of_the_service_are_the_smallest_limit_around_it(name, tmp_path, monkeypatch):
    files, expected = CORES[name]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))

    assert available_cores(root_of(tmp_path, **files)) == expected


def test_workers_and_threads_follow_the_limit_of_computing_time(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("service.machine._group_cores", lambda _: [6])

    settings = Settings()

    assert (settings.workers, settings.running_jobs, settings.threads_per_worker(3)) == (3, 3, 2)
