"""Deleted datasets that workers have mapped: the disk gets the space of a file back when no worker maps it any more."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from service.engine import Engine, EngineError

__all__ = ["Forgetting"]

DEADLINE_S = 60.0  # a worker that is busy for longer forgets the file when it maps another one


class Forgetting:
    """Lets all workers forget the files that have been deleted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def soon(self) -> None:
        """Tell each worker, once for all files that are deleted before it listens."""
        for worker in self._engine.workers():
            if worker.id in self._tasks:
                self._again.add(worker.id)
            else:
                task = self._tasks[worker.id] = asyncio.create_task(self._tell(worker.id))
                task.add_done_callback(partial(self._told, worker.id))

    def _told(self, worker: str, task: asyncio.Task[None]) -> None:
        del self._tasks[worker]
        self._again.discard(worker)

    async def _tell(self, worker: str) -> None:
        while True:
            self._again.discard(worker)
            with contextlib.suppress(EngineError):
                await self._engine.call("datasets.forget_deleted", {}, worker=worker, deadline=DEADLINE_S)
            if worker not in self._again:
                return
