"""The threads of this process that machine code shares its work with."""

from __future__ import annotations

import os
from functools import cache

from core.codegen import pool

__all__ = ["start_threads", "thread_count", "thread_symbols"]


def thread_count() -> int:
    """Threads that machine code may use, the calling one included: BACKPASS_THREADS, else one for each usable core."""
    return int(os.environ.get("BACKPASS_THREADS") or len(os.sched_getaffinity(0)))


@cache
def _pool() -> pool.Pool:
    """The pool of this process; its threads sleep while there is no work."""
    return pool.Pool(thread_count())


def start_threads() -> None:
    """Start the threads now instead of in the first step.

    Their own code is compiled for that, so LLVM has started too.
    """
    _pool()


def thread_symbols() -> dict[str, int]:
    """Addresses of the pool and its functions, for machine code that uses threads."""
    return {**pool.symbols(), "backpass_pool": _pool().address}
