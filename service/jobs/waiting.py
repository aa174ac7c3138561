"""The reason why a job waits, and since when: for clients, which see it in the view of the job."""

from __future__ import annotations

import time
from dataclasses import dataclass

from service.jobs.job import ACTIVE, Job
from service.problems import from_exception

__all__ = ["WAITS", "Waiting", "waiting_after", "waiting_of"]

WAITS = {
    "turn": "as many jobs run as may at a time, or others are before it in the queue",
    "suspended": "an administrator has suspended its tenant",
    "quota": "the compute seconds of its tenant are used up for this day (UTC)",
    "storage": "the disk is full, or the database or the stored files do not answer",
    "worker": "no worker is free for its next call",
    "memory": "no worker has the memory for its next call now",
    "session": "its session is being rebuilt",
    "process": "the process that ran it has ended or does not answer, and no other one has taken it over yet",
    "failure": "its last call failed in a way that may pass",
}
"""The reasons. A paused job waits for a client, and has none of them."""

OF_CODES = {
    "storage-full": "storage",
    "storage-unavailable": "storage",
    "worker-lost": "worker",
    "queue-full": "worker",
    "no-capacity": "worker",
    "device-out-of-memory": "memory",
    "recovering": "session",
}
"""Code of a problem that may pass -> the reason why the job waits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job waits. reason: one of `WAITS`. detail: a sentence. since: seconds since 1970."""

    reason: str
    detail: str
    since: float


def waiting_after(error: Exception, now: float) -> Waiting:
    """The waiting of a job whose call failed with `error` at the time `now`."""
    problem = from_exception(error)
    reason = "worker" if problem.extensions.get("waited") else OF_CODES.get(problem.code, "failure")
    return Waiting(reason, problem.detail, now)


def waiting_of(job: Job, position: int | None, barred: str | None) -> Waiting | None:
    """Why the job waits now; None if it does not, or waits for a client.

    position: number of queued jobs before it, if it is queued. barred: why no job of its tenant may run, if so.
    """
    if job.state in ACTIVE and (job.owner_until or 0.0) < time.time():
        return Waiting("process", WAITS["process"], job.owner_until or job.started or job.queued)
    if job.state in ACTIVE:
        return None if job.waiting is None else Waiting(*job.waiting)
    if job.state != "queued":
        return None
    if barred is not None:
        return Waiting(barred, WAITS[barred], job.queued)
    if not position:
        return Waiting("turn", "it is the first in the queue", job.queued)
    before = "1 job is" if position == 1 else f"{position} jobs are"
    return Waiting("turn", f"{before} before it in the queue", job.queued)
