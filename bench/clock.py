"""How long something takes, and how many calls of functions it makes.

A time is the least of several rounds, in seconds of processor time: what else the machine does can only add to it. A
count of calls is free of that, and of caches that large programs no longer fit into: it tells how the work itself
grows.
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
        """Do `action` and give what it gives; if it took less than before under this name, that is remembered."""
        gc.collect()
        started = time.process_time()
        result = action()
        taken = time.process_time() - started
        self.least[name] = min(taken, self.least.get(name, taken))
        return result


def calls(action: Callable[[], Any]) -> int:
    """The number of calls of functions that `action` makes, those written in C included."""
    profile = cProfile.Profile()
    profile.runcall(action)
    return sum(entry.callcount for entry in profile.getstats())
