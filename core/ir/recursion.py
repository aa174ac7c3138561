"""A higher recursion limit and a paused garbage collector for large, deeply nested programs.

This file owns two switches of the whole process: Python's recursion limit and its cycle collector. No other code
changes them. While any thread is inside `headroom`, the limit is raised and the collector is off for all threads; the
last thread to leave restores both.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["headroom"]

FRAMES = 50_000
"""Recursion limit in Python frames. A nesting level takes about 20 frames; the default limit is 200 levels."""

_lock = threading.Lock()
_inside = 0
_was_enabled = False
_limit_before = 1000


@contextmanager
def headroom() -> Iterator[None]:
    """Raise the recursion limit and pause the cycle collector while the context lasts.

    Building a block makes tens of thousands of objects without reference cycles. Repeated searches for cycles among
    them would make the time grow faster than linearly with the size of the program.
    """
    global _inside, _was_enabled, _limit_before
    with _lock:
        if _inside == 0:
            _was_enabled = gc.isenabled()
            _limit_before = sys.getrecursionlimit()
            gc.disable()
            sys.setrecursionlimit(max(_limit_before, FRAMES))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setrecursionlimit(_limit_before)
                if _was_enabled:
                    gc.enable()
