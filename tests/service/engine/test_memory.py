"""The share of each worker, from the memory of the machine or of its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.memory import UnusableSettings, worker_memory
from service.machine import available_memory
from service.settings import Settings

GIB, MIB = 2**30, 2**20


def root_of(tmp_path: Path, **files: str) -> Path:
    """A directory with `proc` and `sys`. files: content by path, with two underscores for a slash."""
    given = {"proc__meminfo": f"MemFree: 1 kB\nMemTotal: {16 * 2**20} kB\n"} | files
    for name, content in given.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


LIMITS = {
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


@pytest.mark.parametrize("name", LIMITS)
def test_the_memory_of_the_service_is_the_smallest_limit_around_it(name, tmp_path):
    files, expected = LIMITS[name]

    assert available_memory(root_of(tmp_path, **files)) == expected


@pytest.mark.parametrize("total", [2 * GIB, 4 * GIB, 24 * GIB, 512 * GIB])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_workers_their_compilers_and_the_service_fit_into_the_memory(total, workers):
    limit = worker_memory(Settings(workers=workers), total=total)

    assert limit >= 256 * MIB
    assert workers * limit * 3 / 2 <= total - min(total // 4, 512 * MIB)


def test_more_workers_than_fit_are_refused_with_the_number_that_fits():
    with pytest.raises(UnusableSettings, match="at most 2 fit into 1200 MiB") as caught:
        worker_memory(Settings(workers=8), total=1200 * MIB)

    assert caught.value.setting == "workers"
    worker_memory(Settings(workers=2), total=1200 * MIB)


def test_a_limit_that_the_machine_does_not_have_is_refused_with_the_largest_that_fits():
    with pytest.raises(UnusableSettings, match="at most 1792 MiB each") as caught:
        worker_memory(Settings(workers=2, worker_memory=2 * GIB), total=4 * GIB)

    assert caught.value.setting == "worker_memory"
    assert worker_memory(Settings(workers=2, worker_memory=1792 * MIB), total=4 * GIB) == 1792 * MIB
