"""The time that one use of the store may take: until the deadline of its request, and some seconds for each answer.

PostgreSQL may be silent for any time: its machine hangs, or the network loses all packets. SQLite is a file of this
machine, and has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["DEADLINE", "LEAST_S", "LONGEST_S", "Patience", "begun", "limited", "present"]

LONGEST_S = 10.0
"""For a use to begin, and for each answer of the server: a use with much data has many."""

LEAST_S = 1.0
"""A call that has reached its deadline may still store that it has ended."""

DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
"""The deadline of the present request, a value of time.monotonic(); None without a request."""


@dataclass(slots=True)
class Patience:
    """The time that one use of the store may take.

    begins, ends: when the use has to begin and to end at the latest, values of time.monotonic().
    is_over:      whether an answer was late.
    """

    begins: float
    ends: float | None
    is_over: bool = False

    @property
    def left(self) -> float:
        """The seconds to wait for the next answer."""
        if self.is_over:
            return 0.0
        return LONGEST_S if self.ends is None else max(0.0, min(LONGEST_S, self.ends - time.monotonic()))


_present: ContextVar[Patience | None] = ContextVar("present", default=None)


def begun() -> Patience:
    """The patience of a use that is asked for now."""
    now, deadline = time.monotonic(), DEADLINE.get()
    ends = None if deadline is None else max(deadline, now + LEAST_S)
    return Patience(now + LONGEST_S if ends is None else min(now + LONGEST_S, ends), ends)


@contextmanager
def limited(patience: Patience | None) -> Iterator[None]:
    """Let the connections that this thread uses in the block give up when the patience is over."""
    token = _present.set(patience)
    try:
        yield
    finally:
        _present.reset(token)


def present() -> Patience | None:
    """The patience of the use that this thread runs; None without a limit."""
    return _present.get()
