"""The time of an action, and the number of function calls in it.

A time is the least of several rounds, in seconds of processor time: other work on the machine can only add to it. A
count of calls depends neither on other work nor on caches that large programs exceed: it shows the growth of the work
itself.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Clock", "calls"]


class Clock:
    """The least time of each named action."""

    def __init__(self) -> None:
        self.least: dict[str, float] = {}

    def __call__(self, name: str, action: Callable[[], Any]) -> Any:
        """Run `action` and return its result. Keep its time if it is the least so far under this name."""
        gc.collect()
        started = time.process_time()
        result = action()
        taken = time.process_time() - started
        self.least[name] = min(taken, self.least.get(name, taken))
        return result


def calls(action: Callable[[], Any]) -> int:
    """The number of function calls in `action`, including functions written in C."""
    profile = cProfile.Profile()
    profile.runcall(action)
    return sum(entry.callcount for entry in profile.getstats())
