"""The time that one use of the store may take: until the deadline of its request, within two limits.

PostgreSQL may be silent for any time: its machine hangs, or the network loses all packets. SQLite is a file of this
machine, and has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["DEADLINE", "LEAST_S", "LONGEST_S", "left", "limited", "until"]

LONGEST_S = 10.0
LEAST_S = 1.0
"""A call that has reached its deadline may still store that it has ended."""

DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
"""Of the present request, a value of time.monotonic(); None without one."""

_end: ContextVar[float | None] = ContextVar("end", default=None)


def until() -> float:
    """The end of a use of the store that begins now, a value of time.monotonic()."""
    now, deadline = time.monotonic(), DEADLINE.get()
    return now + (LONGEST_S if deadline is None else min(LONGEST_S, max(LEAST_S, deadline - now)))


@contextmanager
def limited(end: float | None) -> Iterator[None]:
    """Let the connections that this thread uses in the block give up at `end`, a value of time.monotonic()."""
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def left() -> float | None:
    """The seconds that this thread may still wait for the database, not below 0; None without a limit."""
    end = _end.get()
    return None if end is None else max(0.0, end - time.monotonic())
