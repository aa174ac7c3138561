"""Calls of processes that keep no state, which can run again."""

from __future__ import annotations

import time
from typing import Any

from service.engine.embedded import EmbeddedPool
from service.engine.protocol import Reply, WorkerLost

__all__ = ["run_stateless"]


async def run_stateless(pool: EmbeddedPool, op: str, args: dict[str, Any], *, deadline: float) -> Reply:
    """The reply to a call. If its process ends, it runs once more: the call may not be the cause, for example on a
    machine without memory.

    deadline: seconds for both. Raises EngineError; WorkerLost if two processes ended.
    """
    end = time.monotonic() + deadline
    try:
        return await pool.call(op, args, deadline=deadline)
    except WorkerLost:
        return await pool.call(op, args, deadline=max(0.0, end - time.monotonic()))
