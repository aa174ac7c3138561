"""Threads for native fork and join: `parallel_for` of many chunks, called from compiled code.

Python threads enter the native `worker_loop` once, with the interpreter's lock released, and stay there until the pool
is closed. The native part is LLVM IR, as there is no C compiler where this runs. Sleeping and waking are Linux's futex;
elsewhere a pool has no workers, and the caller runs all chunks itself.

    void parallel_for(ptr pool, void (*task)(ptr context, i64 chunk), ptr context, i64 chunks)

runs task(context, 0) ... task(context, chunks - 1), each once, on the caller and the workers, and returns when all have
ended. What the caller wrote before is visible to the tasks, what they wrote is visible to it afterwards. One job at a
time: a caller that finds the pool busy (another thread's job, or its own: tasks may call parallel_for) runs its chunks
alone.

How it works, and why it is right on x86-64 and on aarch64 alike:

- TICKETS is one word, `generation << 32 | chunks not yet claimed`. A job is published by exchanging it; a chunk is
  claimed by decrementing it with a compare-exchange, which fails if anything changed since the word was read. So a
  worker that was asleep through several jobs cannot claim from one that is over: its generation is gone. (It would
  take 2^32 jobs within one stop between a load and the compare-exchange to meet the same word again.)
- The job (TASK, CONTEXT, TOTAL) is read between the load of the word and the compare-exchange. The load acquires the
  publication (claims by others in between are read-modify-writes and continue its release sequence), so the job is not
  older than the word. It is not newer either if the compare-exchange succeeds: the next job is written only after
  PENDING came to 0, which includes the chunk claimed here; the job's loads are before the claim's release half, and
  the claim before that. While a next job is being written the word says that 0 chunks are left, and nobody claims. The
  loads and stores of the job are atomic, because those of a claim that fails may race with the writing.
- PENDING counts the chunks of the job that have not ended; each thread takes off what it ran when it finds no more.
  The decrements release, the caller's load of 0 acquires (they are one release sequence): results are visible.
  A thread takes off its chunks before it can see the next job, so no count is mixed up.
- Sleep: a worker counts itself in SLEEPERS, reads the word again, and waits on its upper half, the generation, which
  the kernel compares under its own lock. The publisher exchanges the word, then reads SLEEPERS. All four are
  sequentially consistent: either the publisher sees the sleeper and wakes it, or the sleeper saw the new word. The
  caller's wait for PENDING is the same with CALLER_WAITS: it sets that, reads PENDING and waits on it; the thread that
  brings PENDING to 0 reads CALLER_WAITS after it.
- The last worker may touch the pool (CALLER_WAITS, a wake too many) after the caller has gone on: the pool's memory
  lives until its threads have ended, and a wake without cause only makes a waiter look again.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import weakref
from functools import cache
from types import TracebackType
from typing import Self

from core.codegen import machine

__all__ = ["Pool", "symbols"]

# Offsets in bytes. What different threads write at the same time is two cache lines apart: processors fetch pairs.
TICKETS, JOB, PENDING, CALLER_WAITS, SLEEPERS, BUSY, WORKERS, STOP, SPINS = 0, 128, 256, 260, 384, 512, 640, 644, 648
SIZE, ALIGNMENT = 768, 128

FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of the system call
YIELD = 32  # looks between two offers of the core to others, a power of two
PAUSE = {"x86_64": ("llvm.x86.sse2.pause", ""), "aarch64": ("llvm.aarch64.isb", "i32 15")}


def _available() -> bool:
    return sys.platform == "linux" and platform.machine() in FUTEX


class Pool:
    """Workers for `parallel_for`; a context manager that ends them.

    threads: how many run a job, the caller included; 1 makes no worker.
    spins:   how often a thread without work looks again before it sleeps, some 10 to 40 ns each time: longer than the
             kernels between two jobs of one step mostly take, as waking costs some fifty microseconds. Every so often
             it offers its core to whoever else wants to run, so that a busy machine loses little.
    A closed pool can still be used: the caller runs all alone. So it does in a forked child, where no worker came along
    to claim anything; if the fork was in the middle of a job, the pool counts as busy there.
    """

    def __init__(self, threads: int, spins: int = 2000) -> None:
        if threads < 1:
            raise ValueError(f"a pool needs at least 1 thread, not {threads}")
        native = _native()
        self._memory = ctypes.create_string_buffer(SIZE + ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        ctypes.c_int64.from_address(self.address + SPINS).value = spins
        self._threads: list[threading.Thread] = []
        # also when the pool is dropped and when the interpreter ends; a thread must not outlive the memory
        self._close = weakref.finalize(self, _close, self.address, self._threads, self._memory)
        entry = native.function("worker_loop", ctypes.c_void_p)
        for i in range(threads - 1 if _available() else 0):
            thread = threading.Thread(target=entry, args=(self.address,), name=f"backpass-pool-{i}", daemon=True)
            thread.start()
            self._threads.append(thread)
        ctypes.c_int32.from_address(self.address + WORKERS).value = len(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and wait for them. A job that is under way is finished, at the latest by its caller."""
        self._close()


def symbols() -> dict[str, int]:
    """The addresses of the native functions, for modules that declare them."""
    return {"parallel_for": _native().address("parallel_for")}


def _close(address: int, threads: list[threading.Thread], memory: object) -> None:
    if not threads:
        return
    _native().function("stop_workers", ctypes.c_void_p)(address)
    for thread in threads:
        thread.join()
    threads.clear()


@cache
def _native() -> machine.Library:
    return machine.load(_ir())


def _ir() -> str:
    host = platform.machine() if _available() else ""
    pause, argument = PAUSE.get(host, ("", ""))
    wait = f"call void @{pause}({argument})" if pause else ""
    declare = f"declare void @{pause}({argument.split(' ')[0]})" if pause else ""
    # without futex there are no workers, and nothing here is called
    futex = "call i64 (i64, ...) @syscall(i64 {}, ptr %word, i64 {}, i64 %value, ptr null)".format
    wait_call, wake_call = (futex(FUTEX[host], op) if host else "add i64 0, 0" for op in (128, 129))
    return f"""
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
{declare}

define internal void @pause(i64 %spun) {{ ; a short moment; every so often whoever else wants this core may have it
  {wait}
  %some = and i64 %spun, {YIELD - 1}
  %often = icmp eq i64 %some, {YIELD - 1}
  br i1 %often, label %yield, label %end
yield:
  %ignored = call i32 @sched_yield()
  br label %end
end:
  ret void
}}

define internal void @futex_wait(ptr %word, i64 %value) noinline {{ ; sleep while the word has this value
  %ignored = {wait_call}
  ret void
}}

define internal void @futex_wake(ptr %word, i64 %value) noinline {{ ; wake as many as `value`
  %ignored = {wake_call}
  ret void
}}

define internal i64 @run_chunks(ptr %pool) {{ ; claim and run until no chunk is left; how many were run here
  %task.at = getelementptr i8, ptr %pool, i64 {JOB}
  %context.at = getelementptr i8, ptr %pool, i64 {JOB + 8}
  %total.at = getelementptr i8, ptr %pool, i64 {JOB + 16}
  br label %look
look:
  %ran = phi i64 [ 0, %0 ], [ %more, %run ]
  %first = load atomic i64, ptr %pool acquire, align 8
  br label %try
try:
  %word = phi i64 [ %first, %look ], [ %found, %claim ]
  %left = and i64 %word, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %done, label %claim
claim:
  %task = load atomic ptr, ptr %task.at monotonic, align 8
  %context = load atomic ptr, ptr %context.at monotonic, align 8
  %total = load atomic i64, ptr %total.at monotonic, align 8
  %fewer = sub i64 %word, 1
  %claimed = cmpxchg ptr %pool, i64 %word, i64 %fewer acq_rel acquire
  %found = extractvalue {{ i64, i1 }} %claimed, 0
  %mine = extractvalue {{ i64, i1 }} %claimed, 1
  br i1 %mine, label %run, label %try
run:
  %chunk = sub i64 %total, %left
  call void %task(ptr %context, i64 %chunk)
  %more = add i64 %ran, 1
  br label %look
done:
  ret i64 %ran
}}

define void @worker_loop(ptr %pool) {{
  %generation.at = getelementptr i8, ptr %pool, i64 {TICKETS + 4}
  %pending.at = getelementptr i8, ptr %pool, i64 {PENDING}
  %waits.at = getelementptr i8, ptr %pool, i64 {CALLER_WAITS}
  %sleepers.at = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %stop.at = getelementptr i8, ptr %pool, i64 {STOP}
  %spins.at = getelementptr i8, ptr %pool, i64 {SPINS}
  %limit = load i64, ptr %spins.at
  br label %work
work:
  %ran = call i64 @run_chunks(ptr %pool)
  %some = icmp ne i64 %ran, 0
  br i1 %some, label %finish, label %idle
finish:
  %ran32 = trunc i64 %ran to i32
  %before = atomicrmw sub ptr %pending.at, i32 %ran32 seq_cst
  %last = icmp eq i32 %before, %ran32
  br i1 %last, label %last.one, label %idle
last.one:
  %waits = load atomic i32, ptr %waits.at seq_cst, align 4
  %asleep = icmp ne i32 %waits, 0
  br i1 %asleep, label %wake, label %idle
wake:
  call void @futex_wake(ptr %pending.at, i64 1)
  br label %idle
idle:
  %spun = phi i64 [ 0, %work ], [ 0, %finish ], [ 0, %last.one ], [ 0, %wake ], [ %spun.more, %pause ]
  %seen = load atomic i64, ptr %pool monotonic, align 8
  %left = and i64 %seen, 4294967295
  %any = icmp ne i64 %left, 0
  br i1 %any, label %work, label %stopped
stopped:
  %stop = load atomic i32, ptr %stop.at monotonic, align 4
  %ends = icmp ne i32 %stop, 0
  br i1 %ends, label %end, label %patience
patience:
  %enough = icmp sge i64 %spun, %limit
  br i1 %enough, label %sleep, label %pause
pause:
  call void @pause(i64 %spun)
  %spun.more = add i64 %spun, 1
  br label %idle
sleep:
  %s1 = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  %again = load atomic i64, ptr %pool seq_cst, align 8
  %left.again = and i64 %again, 4294967295
  %any.again = icmp ne i64 %left.again, 0
  %stop.again = load atomic i32, ptr %stop.at seq_cst, align 4
  %ends.again = icmp ne i32 %stop.again, 0
  %up = or i1 %any.again, %ends.again
  br i1 %up, label %awake, label %doze
doze:
  %generation = lshr i64 %again, 32
  call void @futex_wait(ptr %generation.at, i64 %generation)
  br label %awake
awake:
  %s2 = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  br label %work
end:
  ret void
}}

define void @parallel_for(ptr %pool, ptr %task, ptr %context, i64 %chunks) {{
  %generation.at = getelementptr i8, ptr %pool, i64 {TICKETS + 4}
  %task.at = getelementptr i8, ptr %pool, i64 {JOB}
  %context.at = getelementptr i8, ptr %pool, i64 {JOB + 8}
  %total.at = getelementptr i8, ptr %pool, i64 {JOB + 16}
  %pending.at = getelementptr i8, ptr %pool, i64 {PENDING}
  %waits.at = getelementptr i8, ptr %pool, i64 {CALLER_WAITS}
  %sleepers.at = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %busy.at = getelementptr i8, ptr %pool, i64 {BUSY}
  %workers.at = getelementptr i8, ptr %pool, i64 {WORKERS}
  %spins.at = getelementptr i8, ptr %pool, i64 {SPINS}
  %workers = load atomic i32, ptr %workers.at monotonic, align 4
  %nobody = icmp eq i32 %workers, 0
  %few = icmp slt i64 %chunks, 2
  %many = icmp sgt i64 %chunks, {2**31 - 1}
  %unfit = or i1 %few, %many
  %no = or i1 %nobody, %unfit
  br i1 %no, label %alone, label %ask
ask:
  %asked = cmpxchg ptr %busy.at, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %asked, 1
  br i1 %got, label %publish, label %alone
publish:
  store atomic ptr %task, ptr %task.at monotonic, align 8
  store atomic ptr %context, ptr %context.at monotonic, align 8
  store atomic i64 %chunks, ptr %total.at monotonic, align 8
  %chunks32 = trunc i64 %chunks to i32
  store atomic i32 %chunks32, ptr %pending.at monotonic, align 4
  %old = load atomic i64, ptr %pool monotonic, align 8
  %generation = and i64 %old, -4294967296
  %next = add i64 %generation, 4294967296
  %word = or i64 %next, %chunks
  %was = atomicrmw xchg ptr %pool, i64 %word seq_cst
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake:
  %helpers = sub i64 %chunks, 1
  call void @futex_wake(ptr %generation.at, i64 %helpers)
  br label %work
work:
  %ran = call i64 @run_chunks(ptr %pool)
  %ran32 = trunc i64 %ran to i32
  %before = atomicrmw sub ptr %pending.at, i32 %ran32 seq_cst
  %limit = load i64, ptr %spins.at
  br label %wait
wait:
  %spun = phi i64 [ 0, %work ], [ %spun.more, %pause ]
  %pending = load atomic i32, ptr %pending.at acquire, align 4
  %over = icmp eq i32 %pending, 0
  br i1 %over, label %free, label %patience
patience:
  %enough = icmp sge i64 %spun, %limit
  br i1 %enough, label %sleep, label %pause
pause:
  call void @pause(i64 %spun)
  %spun.more = add i64 %spun, 1
  br label %wait
sleep:
  store atomic i32 1, ptr %waits.at seq_cst, align 4
  br label %look
look:
  %rest = load atomic i32, ptr %pending.at seq_cst, align 4
  %over.now = icmp eq i32 %rest, 0
  br i1 %over.now, label %awake, label %doze
doze:
  %value = zext i32 %rest to i64
  call void @futex_wait(ptr %pending.at, i64 %value)
  br label %look
awake:
  store atomic i32 0, ptr %waits.at monotonic, align 4
  br label %free
free:
  store atomic i32 0, ptr %busy.at release, align 4
  ret void
alone:
  %empty = icmp slt i64 %chunks, 1
  br i1 %empty, label %end, label %each
each:
  %chunk = phi i64 [ 0, %alone ], [ %following, %each ]
  call void %task(ptr %context, i64 %chunk)
  %following = add i64 %chunk, 1
  %go = icmp slt i64 %following, %chunks
  br i1 %go, label %each, label %end
end:
  ret void
}}

define void @stop_workers(ptr %pool) {{
  %generation.at = getelementptr i8, ptr %pool, i64 {TICKETS + 4}
  %workers.at = getelementptr i8, ptr %pool, i64 {WORKERS}
  %stop.at = getelementptr i8, ptr %pool, i64 {STOP}
  store atomic i32 0, ptr %workers.at seq_cst, align 4
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  ; whoever is about to sleep finds another generation; chunks that are left can still be claimed
  %was = atomicrmw add ptr %pool, i64 4294967296 seq_cst
  call void @futex_wake(ptr %generation.at, i64 2147483647)
  ret void
}}
"""
