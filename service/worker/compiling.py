"""Compilations beside the calls of a worker.

A handler that needs something compiled asks for it here. If it is not there yet the call is parked: the service hears
that at once, gives the worker to others, and sends the call again when it hears that the compilation is done. One
thread compiles, one thing after the other, and leaves LLVM to a process of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Compilations", "Job", "Parked"]

log = logging.getLogger("backpass.worker")

UNCLAIMED = 64  # results kept for calls that may never come again
STACK_BYTES = 64 * 2**20  # programs may be nested deeply


class Parked(Exception):
    """The call cannot go on before `job` is done. Handlers let it pass; nothing has happened yet."""

    def __init__(self, job: Job) -> None:
        super().__init__("the call waits for a compilation")
        self.job = job


@dataclass(eq=False, slots=True)
class Job:
    """Something to compile. waiting: numbers of the calls that wait for it; abandoned: they have all given up."""

    key: Hashable
    compile: Callable[[], Any]
    done: bool = False
    value: Any = None
    error: Exception | None = None
    waiting: set[int] = field(default_factory=set)
    abandoned: bool = False


class Compilations:
    """The jobs of one worker."""

    def __init__(
        self, tell: Callable[[int], None], idle: Callable[[], None] = lambda: None, idle_s: float = 600.0
    ) -> None:
        """tell: says, from any thread, that the call of a number can be sent again.

        idle: called after `idle_s` seconds without work, to give back what compiling needs.
        """
        self._tell, self._idle, self._idle_s = tell, idle, idle_s
        self._jobs: dict[Hashable, Job] = {}
        self._queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def result(self, key: Hashable, compile: Callable[[], Any]) -> Any:
        """What `compile` returns, once for each time it has run; what it raises is raised here.

        Raises Parked if it has not run yet; it will.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(key, compile)
                self._queue.put(job)
                self.start()
            job.abandoned = False
            if not job.done:
                raise Parked(job)
            del self._jobs[key]
        if job.error is not None:
            raise job.error
        return job.value

    def wait(self, job: Job, number: int) -> None:
        """Tell when `job` is done that the call of this number can come again. The service knows that it is parked."""
        with self._lock:
            if not job.done:
                job.waiting.add(number)
                return
        self._tell(number)

    def forget(self, number: int) -> None:
        """The call of this number will not come again. What nobody waits for, and has not begun, is not compiled."""
        with self._lock:
            for job in self._jobs.values():
                if number in job.waiting:
                    job.waiting.discard(number)
                    job.abandoned = not job.waiting

    def start(self) -> None:
        """Count the time without work from now on; the first job would begin it otherwise."""
        if self._thread is None:
            before = threading.stack_size(STACK_BYTES)
            try:
                self._thread = threading.Thread(target=self._work, daemon=True, name="compiling")
                self._thread.start()
            finally:
                threading.stack_size(before)

    def _work(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=self._idle_s)
            except queue.Empty:
                self._idle()
                job = self._queue.get()
            with self._lock:
                if job.abandoned:
                    del self._jobs[job.key]
                    continue
            try:
                job.value = job.compile()
            except Exception as error:  # whoever waits for it will get it
                job.error = error
            with self._lock:
                job.done = True
                told, job.waiting = job.waiting, set()
                self._drop_unclaimed()
            for number in told:
                self._tell(number)

    def _drop_unclaimed(self) -> None:
        done = [key for key, job in self._jobs.items() if job.done]
        for key in done[:-UNCLAIMED]:
            del self._jobs[key]
