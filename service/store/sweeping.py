"""Sweeps that a process of the service makes again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from service.problems import HttpProblem

__all__ = ["keep_sweeping"]


async def keep_sweeping(
    sweep: Callable[[], Awaitable[object]], pause_s: float, log: logging.Logger, failure: str
) -> None:
    """Call `sweep` at once and after each pause, until cancelled. Run it as a task.

    failure: a sentence for the log about a sweep that raises StorageError, another HttpProblem or OSError. The next
    sweep tries again.
    """
    while True:
        try:
            await sweep()
        except (HttpProblem, OSError) as error:
            log.warning("%s: %s", failure, error)
        await asyncio.sleep(pause_s)
