"""A pool of threads for compiled code: `parallel_for` runs the chunks of a task on the caller and the workers.

    void parallel_for(ptr pool, void (*task)(ptr context, i64 chunk), ptr context, i64 chunks)

runs task(context, 0) ... task(context, chunks - 1), each once, and returns when all have ended. The tasks see all
that the caller wrote before, and the caller sees all that the tasks wrote. One job runs at a time: a caller that finds
the pool busy (another thread's job, or its own: tasks may call parallel_for) runs all its chunks alone.

Workers are Python threads. Each enters the native `worker_loop` once, with the interpreter's lock released, and stays
there until the pool is closed. `pool_code` writes the native functions as LLVM IR, because the user's machine has no C
compiler. Threads sleep on Linux's futex; on other systems a pool has no workers.

Why the protocol is correct on x86-64 and on aarch64:

- TICKETS is one word: `generation << 32 | chunks not yet claimed`. The caller publishes a job by exchanging the word. A
  thread claims a chunk by decrementing the word with a compare-exchange, which fails if the word has changed since it
  was read. So a worker that slept through several jobs cannot claim a chunk of an old one: the generation differs. (The
  same word comes back after 2^32 jobs; all of them would have to run between one load and its compare-exchange.)
- A thread reads the job (TASK, CONTEXT, TOTAL) after it loads TICKETS and before its compare-exchange. The job is not
  older than the word: the load acquires the publication, and claims in between are read-modify-writes, which continue
  its release sequence. The job is not newer than the word if the compare-exchange succeeds: the caller writes the next
  job only after PENDING reached 0; PENDING includes the chunk claimed here; the loads of the job happen before the
  release half of the claim. While the caller writes the next job, TICKETS says that no chunk is left, so no thread
  claims. The loads and stores of the job are atomic because those of a claim that fails may race with that writing.
- PENDING counts the chunks of the job that have not ended. A thread subtracts the number of chunks that it ran once it
  finds no more to claim. The subtractions release, and the caller's load of 0 acquires (they form one release
  sequence), so the caller sees all results. A thread subtracts before it can see the next job, so the counts of two
  jobs never mix.
- Sleep: a worker increments SLEEPERS, loads TICKETS again, and waits on its upper half, the generation, which the
  kernel compares under its own lock. The caller exchanges TICKETS, then loads SLEEPERS. All four are sequentially
  consistent, so either the caller sees the sleeper and wakes it, or the worker sees the new word. The caller's wait for
  PENDING works alike with CALLER_WAITS: the caller sets it, loads PENDING and waits on it; the thread that brings
  PENDING to 0 loads CALLER_WAITS afterwards.
- The last worker may touch the pool (CALLER_WAITS, or one wake too many) after the caller has gone on. The memory of a
  pool therefore lives until its threads have ended, and a waiter that is woken without cause looks again.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from types import TracebackType
from typing import Self

from core.codegen import machine
from core.codegen.pool_code import ALIGNMENT, SIZE, SPINS, WORKERS, has_futex, pool_module

__all__ = ["Pool", "symbols"]


class Pool:
    """Workers for `parallel_for`; a context manager that ends them.

    threads: how many run a job, the caller included; 1 makes no worker.
    spins:   how often an idle thread looks for work before it sleeps; a look takes 10 to 40 ns. The default covers most
             kernels between two jobs of one step, because waking a thread costs some fifty microseconds. Every 32 spins
             the thread yields its core, so that a busy machine loses little.

    A closed pool still works: the caller runs all chunks alone. The same holds in a forked child, which has no workers;
    a pool whose job was running when the process forked stays busy in the child.
    """

    def __init__(self, threads: int, spins: int = 2000) -> None:
        if threads < 1:
            raise ValueError(f"a pool needs at least 1 thread, not {threads}")
        native = _native()
        self._memory = ctypes.create_string_buffer(SIZE + ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        ctypes.c_int64.from_address(self.address + SPINS).value = spins
        self._threads: list[threading.Thread] = []
        # runs when the pool is collected and when the interpreter ends: a thread must not outlive the memory
        self._close = weakref.finalize(self, _close, self.address, self._threads, self._memory)
        entry = native.function("worker_loop", ctypes.c_void_p)
        for i in range(threads - 1 if has_futex() else 0):
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
        """End the workers and wait for them. A running job still finishes, at the latest on its caller's thread."""
        self._close()


def symbols() -> dict[str, int]:
    """The address of each native function that other modules may declare."""
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
    return machine.load(pool_module().text())
