"""The thread pool: every chunk runs exactly once, whichever thread claims it."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from llvmlite import binding

from core.codegen import machine
from core.codegen.pool import Pool, symbols
from core.codegen.pool_code import pool_module

IR = """
declare void @parallel_for(ptr, ptr, ptr, i64)
declare i32 @sched_yield()

define void @count(ptr %counts, i64 %chunk) { ; counts[chunk] += 1, not atomically: each chunk has its own
  %at = getelementptr i64, ptr %counts, i64 %chunk
  %old = load i64, ptr %at
  %mixed = mul i64 %chunk, 7
  %turns = and i64 %mixed, 31
  br label %dawdle
dawdle: ; so that chunks overlap in other ways each time
  %i = phi i64 [ 0, %0 ], [ %n, %dawdle ]
  %ignored = load volatile i64, ptr %at
  %n = add i64 %i, 1
  %go = icmp slt i64 %n, %turns
  br i1 %go, label %dawdle, label %end
end:
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret void
}

define void @repeat(ptr %pool, ptr %counts, i64 %chunks, i64 %times, i64 %stride) { ; jobs one after the other
  br label %job
job: ; with one of two contexts in turn
  %i = phi i64 [ 0, %0 ], [ %n, %job ]
  %odd = and i64 %i, 1
  %offset = mul i64 %odd, %stride
  %own = getelementptr i64, ptr %counts, i64 %offset
  call void @parallel_for(ptr %pool, ptr @count, ptr %own, i64 %chunks)
  %n = add i64 %i, 1
  %go = icmp slt i64 %n, %times
  br i1 %go, label %job, label %end
end:
  ret void
}

define void @add(ptr %job, i64 %chunk) { ; job: values, sums, elements per chunk
  %values = load ptr, ptr %job
  %sums.at = getelementptr ptr, ptr %job, i64 1
  %sums = load ptr, ptr %sums.at
  %size.at = getelementptr i64, ptr %job, i64 2
  %size = load i64, ptr %size.at
  %start = mul i64 %chunk, %size
  %first = getelementptr i64, ptr %values, i64 %start
  br label %each
each:
  %i = phi i64 [ 0, %0 ], [ %n, %each ]
  %total = phi i64 [ 0, %0 ], [ %more, %each ]
  %at = getelementptr i64, ptr %first, i64 %i
  %value = load i64, ptr %at
  %more = add i64 %total, %value
  %n = add i64 %i, 1
  %go = icmp slt i64 %n, %size
  br i1 %go, label %each, label %end
end:
  %out = getelementptr i64, ptr %sums, i64 %chunk
  store i64 %more, ptr %out
  ret void
}

define void @sums(ptr %pool, ptr %job, i64 %chunks) {
  call void @parallel_for(ptr %pool, ptr @add, ptr %job, i64 %chunks)
  ret void
}

define void @meet(ptr %arrived, i64 %chunk) { ; end when all four are here, or after very long
  %old = atomicrmw add ptr %arrived, i64 1 seq_cst
  br label %wait
wait:
  %i = phi i64 [ 0, %0 ], [ %n, %again ]
  %here = load atomic i64, ptr %arrived seq_cst, align 8
  %all = icmp sge i64 %here, 4
  br i1 %all, label %end, label %again
again:
  %ignored = call i32 @sched_yield()
  %n = add i64 %i, 1
  %patient = icmp slt i64 %n, 100000000
  br i1 %patient, label %wait, label %end
end:
  %same = load atomic i64, ptr %arrived seq_cst, align 8
  %ok = icmp sge i64 %same, 4
  %met.at = getelementptr i64, ptr %arrived, i64 1
  %one = zext i1 %ok to i64
  %m = atomicrmw add ptr %met.at, i64 %one seq_cst
  ret void
}

define void @meeting(ptr %pool, ptr %arrived) {
  call void @parallel_for(ptr %pool, ptr @meet, ptr %arrived, i64 4)
  ret void
}

define void @outer(ptr %pair, i64 %chunk) { ; pair: the pool, counts[8][16]
  %pool = load ptr, ptr %pair
  %counts.at = getelementptr ptr, ptr %pair, i64 1
  %counts = load ptr, ptr %counts.at
  %row = mul i64 %chunk, 16
  %own = getelementptr i64, ptr %counts, i64 %row
  call void @parallel_for(ptr %pool, ptr @count, ptr %own, i64 16)
  ret void
}

define void @nested(ptr %pool, ptr %pair) {
  call void @parallel_for(ptr %pool, ptr @outer, ptr %pair, i64 8)
  ret void
}
"""
LIBRARY = machine.load(IR, symbols=symbols())
POINTER, WORD = ctypes.c_void_p, ctypes.c_int64
repeat = LIBRARY.function("repeat", POINTER, POINTER, WORD, WORD, WORD)
sums = LIBRARY.function("sums", POINTER, POINTER, WORD)
meeting = LIBRARY.function("meeting", POINTER, POINTER)
nested = LIBRARY.function("nested", POINTER, POINTER)

linux = pytest.mark.skipif(sys.platform != "linux", reason="pools have workers on Linux only")


def counted(pool: Pool, chunks: int, times: int) -> np.ndarray:
    """How often each chunk ran in `times` jobs of `chunks`: a row for the even jobs, one for the odd ones.

    A row has two more numbers, which must stay 0.
    """
    counts = np.zeros((2, chunks + 2), np.int64)
    repeat(pool.address, counts.ctypes.data, chunks, times, chunks + 2)
    return counts


def assert_each_ran(times: int, counts: np.ndarray) -> None:
    assert np.all(counts[0, :-2] == (times + 1) // 2)
    assert np.all(counts[1, :-2] == times // 2)
    assert np.all(counts[:, -2:] == 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
def test_sums_over_chunks_equal_those_of_one_thread(threads):
    random = np.random.default_rng(threads)
    with Pool(threads) as pool:
        for _ in range(200):
            chunks, size = int(random.integers(1, 60)), int(random.integers(1, 2000))
            values = random.integers(-1000, 1000, (chunks, size))
            result = np.zeros(chunks, np.int64)
            job = (ctypes.c_int64 * 3)(values.ctypes.data, result.ctypes.data, size)

            sums(pool.address, ctypes.addressof(job), chunks)

            assert np.array_equal(result, values.sum(1))


@pytest.mark.parametrize("chunks", [0, 1, 2, 4, 33])
def test_a_hundred_thousand_tiny_jobs_lose_nothing(chunks):
    with Pool(4) as pool:
        assert_each_ran(100_000, counted(pool, chunks, 100_000))


def test_threads_that_never_spin_lose_nothing():
    with Pool(4, spins=0) as pool:
        assert_each_ran(5_000, counted(pool, 8, 5_000))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to choose its cores")
def test_eight_threads_on_two_cores_lose_nothing():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        with Pool(8) as pool:
            assert_each_ran(20_000, counted(pool, 16, 20_000))
    finally:
        os.sched_setaffinity(0, before)


@linux
def test_chunks_run_at_the_same_time():
    with Pool(4) as pool:
        for _ in range(50):
            arrived_met = np.zeros(2, np.int64)
            meeting(pool.address, arrived_met.ctypes.data)  # no chunk ends before all four have begun
            assert arrived_met.tolist() == [4, 4]


def test_concurrent_callers_each_get_their_own_chunks():
    with Pool(3) as pool:
        results: list[np.ndarray] = []
        callers = [threading.Thread(target=lambda n=n: results.append(counted(pool, n, 20_000))) for n in (2, 5, 9, 16)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    assert sorted(r.shape[1] - 2 for r in results) == [2, 5, 9, 16]
    for each in results:
        assert_each_ran(20_000, each)


def test_a_task_may_fork_again():
    counts = np.zeros((8, 16), np.int64)
    with Pool(4) as pool:
        pair = (ctypes.c_int64 * 2)(pool.address, counts.ctypes.data)
        nested(pool.address, ctypes.addressof(pair))

    assert np.all(counts == 1)


def test_an_idle_pool_uses_no_processor_time():
    with Pool(4) as pool:
        counted(pool, 8, 100)
        before = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - before

    assert used < 0.1  # of the 1.5 that three spinning threads would take


def test_closing_ends_the_threads_and_leaves_a_pool_of_one():
    before = set(threading.enumerate())
    pools = [Pool(3) for _ in range(20)]  # some are still starting, some spin, some sleep
    for pool in pools:
        pool.close()
        pool.close()

    assert set(threading.enumerate()) <= before
    assert_each_ran(7, counted(pools[0], 5, 7))


def test_closing_during_a_job_loses_nothing():
    for _ in range(20):
        pool = Pool(3)
        results: list[np.ndarray] = []
        caller = threading.Thread(target=lambda p=pool, r=results: r.append(counted(p, 6, 3_000)))
        caller.start()
        pool.close()
        caller.join()
        assert_each_ran(3_000, results[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_pool_of_one():
    with Pool(3) as pool:
        counted(pool, 8, 100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forks in a process with threads
            child = os.fork()
        if child == 0:
            good = False
            try:
                good = bool(np.all(counted(pool, 8, 100)[:, :-2] == 50))
                pool.close()
            finally:
                os._exit(0 if good else 1)
        _, status = os.waitpid(child, 0)

        assert status == 0
        assert_each_ran(100, counted(pool, 8, 100))


@pytest.mark.parametrize(
    ("system", "host", "words"),
    [
        ("linux", "x86_64", ("@syscall(i64 202,", "@llvm.x86.sse2.pause()")),
        ("linux", "aarch64", ("@syscall(i64 98,", "@llvm.aarch64.isb(i32 15)")),
        ("darwin", "arm64", ()),
    ],
)
def test_the_native_code_is_valid_for_each_kind_of_host(monkeypatch, system, host, words):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: host)

    text = pool_module().text()

    binding.parse_assembly(text).verify()
    assert all(word in text for word in words)
    assert ("syscall" in text) == (system == "linux")


def test_a_pool_needs_a_thread():
    with pytest.raises(ValueError, match="at least 1 thread, not 0"):
        Pool(0)
