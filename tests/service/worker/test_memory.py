"""The measured memory of a worker, and the memory of a GPU."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.ir.errors import OutOfMemory
from service.worker.memory import DeviceMemory, HostMemory, require

MIB = 2**20
LIMIT = 2**14 * MIB
"""Much more than a process takes that has run many tests."""


def alone(check: Callable[[], None]) -> None:
    """Run a check in a process of its own: what other tests have left in threads would count, too."""
    process = get_context("spawn").Process(target=check)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_arrays_count_from_their_allocation_to_their_end():
    alone(_arrays_count)


def _arrays_count() -> None:
    host = HostMemory(LIMIT)
    before = host.used()

    zeros = np.zeros(40 * MIB, np.uint8)  # the system gives pages at the first touch

    assert host.used() - before == pytest.approx(40 * MIB, abs=4 * MIB)
    assert host.available(0) <= host.capacity - 36 * MIB
    del zeros
    assert host.used() - before == pytest.approx(0, abs=4 * MIB)


def test_arrays_count_in_full_when_threads_have_ended_meanwhile():
    alone(_arrays_count_in_full)


def _arrays_count_in_full() -> None:
    """A thread's stack is mapped but hardly used, and the system unmaps it at the end of the thread."""
    stacks = [mmap.mmap(-1, 40 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(4)]
    host = HostMemory(LIMIT)
    for stack in stacks:
        stack.close()

    array = np.ones(80 * MIB, np.uint8)

    assert host.available(0) <= host.capacity - 76 * MIB
    del array


def test_shared_memory_of_answers_counts():
    host = HostMemory(LIMIT)
    before = host.used()

    host.answers = lambda: 100 * MIB

    assert host.used() - before >= 99 * MIB


def test_memory_given_back_since_the_start_adds_nothing_to_the_capacity():
    array = np.ones(200 * MIB, np.uint8)
    host = HostMemory(LIMIT + array.nbytes)
    del array

    assert host.used() < 4 * MIB
    assert host.available(host.capacity + MIB) <= host.capacity


def test_a_worker_does_not_count_memory_that_it_allocated_before_its_start_and_never_touched():
    """More of it than the process has in memory, whose heap has holes that were given back."""
    blocks = [np.ones(50_000, np.uint8) for _ in range(2000)]
    kept = blocks[::2]
    del blocks
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    untouched = np.empty(resident + 300 * MIB, np.uint8)
    host = HostMemory(LIMIT)

    assert host.used() < 4 * MIB
    array = np.ones(50 * MIB, np.uint8)
    assert host.used() == pytest.approx(50 * MIB, abs=4 * MIB)
    del untouched
    assert host.used() == pytest.approx(50 * MIB, abs=4 * MIB)
    del array
    assert host.used() < 4 * MIB
    del kept


def test_a_fifth_of_the_limit_is_left_for_what_nothing_predicts():
    host = HostMemory(1000 * MIB)

    with pytest.raises(OutOfMemory) as caught:
        require(host, 801 * MIB, "the request")

    assert (caught.value.code, caught.value.wanted) == ("too_large", 801 * MIB)
    assert caught.value.allowed <= host.capacity < 800 * MIB


class Pool:
    """The memory pool of cupy, as far as `DeviceMemory` uses it."""

    def __init__(self) -> None:
        self.limit, self.used, self.kept, self.elsewhere = 0, 0, 0, 0

    def set_limit(self, size: int) -> None:
        self.limit = size

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.used + self.kept

    def free_bytes(self) -> int:
        return self.kept

    def free_all_blocks(self) -> None:
        self.kept = 0


def device(limit: int | None, kept: Any = None) -> tuple[DeviceMemory, Pool]:
    pool = Pool()
    free = lambda: 900 * MIB - pool.total_bytes() - pool.elsewhere
    runtime = SimpleNamespace(memGetInfo=lambda: (free(), 1000 * MIB))
    xp = SimpleNamespace(get_default_memory_pool=lambda: pool, cuda=SimpleNamespace(runtime=runtime))
    return DeviceMemory(xp, limit, kept), pool


@pytest.mark.parametrize(("limit", "expected"), [(None, 900), (500 * MIB, 500), (2000 * MIB, 900)])
def test_the_pool_of_a_gpu_is_limited_to_the_setting_and_to_its_free_memory(limit, expected):
    memory, pool = device(limit)

    assert pool.limit == expected * MIB
    assert memory.capacity == expected * MIB * 4 // 5


def test_blocks_that_a_gpu_keeps_are_freed_for_a_run_that_needs_them():
    memory, pool = device(500 * MIB)
    pool.used, pool.kept = 100 * MIB, 350 * MIB

    assert memory.available(20 * MIB) == 300 * MIB
    assert pool.kept == 350 * MIB
    assert memory.available(200 * MIB) == 300 * MIB
    assert pool.kept == 0


def test_memory_of_a_gpu_that_other_processes_take_is_not_left():
    memory, pool = device(None)
    pool.used = 100 * MIB
    before = memory.available(MIB)

    pool.elsewhere = 500 * MIB

    assert before == 620 * MIB
    assert memory.available(MIB) == 120 * MIB


class Arena:
    """Memory that machine code keeps in a pool."""

    def __init__(self, nbytes: int) -> None:
        self.idle_bytes, self.pool = nbytes, Pool()

    def free_idle(self) -> None:
        self.pool.used -= self.idle_bytes
        self.idle_bytes = 0


def test_idle_memory_of_a_gpu_is_left_for_a_step_and_freed_only_for_an_array():
    arena = Arena(400 * MIB)
    memory, arena.pool = device(None, arena)
    arena.pool.used = 500 * MIB

    assert memory.available(600 * MIB, keep_idle=True) == 620 * MIB
    assert memory.available(200 * MIB) == 220 * MIB
    assert arena.idle_bytes == 400 * MIB
    assert memory.available(300 * MIB) == 620 * MIB
    assert arena.idle_bytes == 0
