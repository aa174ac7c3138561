"""The events of a job as a source of `service.http.sse`: read from the store, with a bell for those of this process."""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakSet

from service.http.sse import Page
from service.jobs.store import JobStore

__all__ = ["Bell", "JobEvents"]

POLL_S = 1.0
"""Seconds after which the store is asked for events of other processes."""


class Bell:
    """Tells the readers of a job in this process that it has new events."""

    def __init__(self) -> None:
        self._listening: dict[str, WeakSet[asyncio.Event]] = {}

    def ring(self, job: str) -> None:
        """Set the events that listen to `job`."""
        for event in self._listening.get(job, ()):
            event.set()

    def listen(self, job: str, event: asyncio.Event) -> None:
        """Let `event` be set whenever the job has new events, as long as anyone holds it."""
        for each in [each for each, events in self._listening.items() if not events]:
            del self._listening[each]
        self._listening.setdefault(job, WeakSet()).add(event)


class JobEvents:
    """The events of one job."""

    def __init__(self, jobs: JobStore, bell: Bell, job: str) -> None:
        self._jobs, self._job = jobs, job
        self._rung = asyncio.Event()
        bell.listen(job, self._rung)

    async def after(self, id: int, limit: int) -> Page:
        self._rung.clear()  # before the store is read: a later ring is heard by `wait`
        return await self._jobs.events(self._job, id, limit)

    async def wait(self, id: int, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, POLL_S)):
                await self._rung.wait()
