"""The runner: trains a bounded number of jobs at a time, in a fair order, and goes on with those of ended processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection

from service.caller import acting_for
from service.engine import EngineError, NoCapacity, QueueFull
from service.jobs.job import ENDED, Job
from service.jobs.sessions import Sessions
from service.jobs.store import Fenced, JobStore
from service.jobs.stream import Bell
from service.jobs.training import CHUNK_S, LOST, MOST_FAILURES, Checkpointed, Training, storage_is_away
from service.jobs.waiting import waiting_after
from service.problems import HttpProblem
from service.store.errors import StorageError

__all__ = ["Runner"]

log = logging.getLogger("backpass.jobs")

POLL_S = 1.0
RENEW_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0


class Runner:
    """Runs jobs as tasks of the event loop; the steps are computed by workers."""

    def __init__(
        self,
        jobs: JobStore,
        sessions: Sessions,
        checkpointed: Checkpointed,
        *,
        limit: int,
        longest_call: float,
        chunk_s: float = CHUNK_S,
        has_compute: Callable[[str], bool] = lambda tenant: True,
        suspended: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """limit: most jobs at a time. has_compute: whether a tenant has compute seconds left; jobs of others wait.

        suspended: the suspended tenants, whose jobs wait.
        The other arguments are those of `Training`.
        """
        self.jobs = jobs
        self.bell = Bell()
        self._sessions, self._checkpointed = sessions, checkpointed
        self._limit, self._longest, self._chunk_s = limit, longest_call, chunk_s
        self._has_compute, self._suspended = has_compute, suspended
        self._barred: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self.tenants: Counter[str] = Counter()
        """Tenant -> the number of its jobs that run in this process."""
        self._wake = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def running(self) -> int:
        """The number of jobs that run in this process."""
        return len(self._running)

    async def start(self) -> None:
        """Go on with the jobs of the process before, then run those of the queue. Raises StorageError."""
        await self.jobs.disown()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop all loops after their call. Their jobs stay in the state running, for the next process."""
        self._closing = True
        tasks = [*self._running.values()]
        if self._watching is not None:
            self._watching.cancel()
            tasks.append(self._watching)
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StorageError):
            await self.jobs.release()

    def wake(self, job: Job | None = None) -> None:
        """Look at the queue now: a job was added, or changed its state."""
        if job is not None:
            self._told(job)
        self._wake.set()

    async def ended(self, id: str) -> None:
        """Wait until this process does not run the job any more."""
        task = self._running.get(id)
        if task is not None:
            await asyncio.wait({task})

    def bar(self, tenant: str) -> str | None:
        """Why no job of `tenant` may run now, as a reason of `WAITS`; None if they may."""
        if tenant in self._suspended():
            return "suspended"
        return None if self._has_compute(tenant) else "quota"

    def _bar(self, tenant: str) -> str | None:
        """As `bar`; if there is a reason, no job of the tenant is taken from the queue while it lasts."""
        reason = self.bar(tenant)
        if reason is not None:
            self._barred.add(tenant)
        return reason

    def _told(self, job: Job) -> None:
        """Tell the readers that the job has new events; let clients find the session of an ended one."""
        session = self._sessions.held(job.tenant, job.session) if job.state in ENDED else None
        if session is not None and session.job == job.id:
            session.job = None
        self.bell.ring(job.id)

    async def _watch(self) -> None:
        renewed = 0.0
        loop = asyncio.get_running_loop()
        while not self._closing:
            self._wake.clear()
            try:
                if loop.time() - renewed > RENEW_S:
                    renewed = loop.time()
                    await self.jobs.renew([*self._running])
                for late in await self.jobs.expire():
                    self._told(late)
                self._barred = {tenant for tenant in {*self._barred, *self._suspended()} if self.bar(tenant)}
                while len(self._running) < self._limit:
                    job = await self.jobs.claim(self._barred, self._running)
                    if job is None:
                        break
                    self._begin(job)
            except (StorageError, HttpProblem) as error:
                log.warning("the queue of jobs cannot be read: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    def _begin(self, job: Job) -> None:
        with acting_for(job.tenant):  # its calls count as those of its tenant
            task = asyncio.create_task(self._run(job), name=f"job {job.id}")
        self._running[job.id] = task
        self.tenants[job.tenant] += 1
        self.bell.ring(job.id)

        def ended(task: asyncio.Task[None]) -> None:
            self.tenants[job.tenant] -= 1
            if self._running.get(job.id) is task:
                del self._running[job.id]
            self.bell.ring(job.id)
            self._wake.set()

        task.add_done_callback(ended)

    async def _run(self, job: Job) -> None:
        """Run the loop of `job`, again after failures that may pass."""
        log.info("job %s runs from step %d", job.id, job.progress.step)
        training = Training(
            job, self.jobs, self._sessions, self._checkpointed, self._told, self._bar,
            longest_call=self._longest, chunk_s=self._chunk_s,
        )  # fmt: skip
        failures, pause = 0, FIRST_PAUSE_S
        error: Exception
        while not self._closing:
            before = job.progress.step
            try:
                await training.run()
                return
            except Fenced:
                log.info("job %s is run by another process, or was deleted", job.id)
                return
            except (EngineError, StorageError, HttpProblem) as failed:
                error = failed
                if job.progress.step > before:
                    failures, pause = 0, FIRST_PAUSE_S
                if not (isinstance(error, QueueFull | NoCapacity | StorageError) or storage_is_away(error)):
                    failures += 2 if isinstance(error, HttpProblem) and error.code == LOST else 1
                log.info("job %s waits after a failure: %s", job.id, error)
                if failures >= MOST_FAILURES:
                    with contextlib.suppress(Fenced, StorageError):
                        await training.give_up(error)
                        return
            except Exception as failed:
                error = failed
                log.exception("job %s failed", job.id)
                with contextlib.suppress(Fenced, StorageError):
                    await training.give_up(error)
                    return
            try:
                with contextlib.suppress(StorageError):
                    await training.waits(waiting_after(error, time.time()))
                await self._wait(training, job, pause * random.uniform(0.5, 1.0))
            except Fenced:
                return
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _wait(self, training: Training, job: Job, seconds: float) -> None:
        """Wait before the next try, until a client asks for an action at the latest. Raises Fenced."""
        rung = asyncio.Event()
        self.bell.listen(job.id, rung)  # before the store is read: a later request is heard
        with contextlib.suppress(StorageError):
            if await training.look():
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await rung.wait()
        with contextlib.suppress(StorageError):
            await training.look()
