"""A job that waits says why, and since when."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from service.engine import DeadlineExceeded, NoCapacity, QueueFull, RemoteError, WorkerLost
from service.engine.line import in_line
from service.jobs import Job, Runner, training
from service.jobs.waiting import WAITS, Waiting, waiting_after, waiting_of
from service.problems import HttpProblem
from service.store.errors import StorageFull, StorageUnavailable
from tests.paths import ROOT
from tests.service.jobs.test_runner import until

pytestmark = pytest.mark.anyio


async def waits(runner: Runner, job: Job, reason: str | None) -> Waiting | None:
    """Why the job waits, as soon as that is `reason`."""
    async with asyncio.timeout(60):
        while True:
            found = await runner.jobs.get(job.tenant, job.id)
            position = (await runner.jobs.positions([found])).get(job.id)
            shown = waiting_of(found, position, runner.bar(job.tenant))
            if (shown and shown.reason) == reason:
                return shown
            await asyncio.sleep(0.005)


ERRORS = [
    (StorageFull("no space is left"), "storage"),
    (StorageUnavailable("the directory of files is not in its place"), "storage"),
    (RemoteError("execution", "storage_unavailable", "stored data cannot be reached", {}), "storage"),
    (RemoteError("memory", "out_of_memory", "no room", {}), "memory"),
    (WorkerLost("wrk_1", "killed"), "worker"),
    (NoCapacity("no worker can be started"), "worker"),
    (QueueFull("the queue already holds 64 calls"), "worker"),
    (DeadlineExceeded("the deadline passed before a worker was free", waited=True), "worker"),
    (HttpProblem("recovering", "the session is being rebuilt"), "session"),
    (RemoteError("internal", "internal", "a defect with secrets", {}), "failure"),
]


@pytest.mark.parametrize(("error", "reason"), ERRORS, ids=[f"{type(e).__name__}-{r}" for e, r in ERRORS])
def test_the_reason_follows_from_the_problem(error, reason):
    found = waiting_after(error, 7.0)

    assert (found.reason, found.since) == (reason, 7.0)
    assert found.detail
    assert "secrets" not in found.detail


async def test_a_job_that_waits_after_a_failure_keeps_the_beginning_of_its_wait(house):
    runner, away = await house.runner(), True

    def fails(op: str) -> None:
        if away and op == "session.fit":
            raise StorageUnavailable("the directory of files is not in its place", "/secret/path")

    house.sessions.before = fails
    before = time.time()
    job = await house.submit(runner, steps=20)
    first = await waits(runner, job, "storage")
    await asyncio.sleep(1.0)  # at least one more try
    later = await waits(runner, job, "storage")
    away = False
    done = await until(runner, job)

    assert first == later == Waiting("storage", "the directory of files is not in its place", first.since)
    assert before <= first.since <= time.time()
    assert done.waiting is None
    told = [e.data for e in (await runner.jobs.events(job.id, 0, 1000)).events if e.kind == "waiting"]
    assert [(each["reason"], each["detail"]) for each in told] == [(first.reason, first.detail)]


async def test_another_reason_begins_another_wait(house):
    runner, errors = await house.runner(), [NoCapacity("no worker can be started"), StorageFull("no space is left")]

    def fails(op: str) -> None:
        if errors:
            raise errors.pop()

    house.sessions.before = fails
    job = await house.submit(runner, steps=20)
    await until(runner, job)

    told = [e.data["reason"] for e in (await runner.jobs.events(job.id, 0, 1000)).events if e.kind == "waiting"]
    assert told == ["storage", "worker"]


async def test_a_queued_job_waits_for_its_turn(house):
    runner = await house.runner(limit=0)
    first = await house.submit(runner)
    second = await house.submit(runner)

    told = [await waits(runner, job, "turn") for job in (first, second)]

    assert [each.since for each in told] == [first.queued, second.queued]
    assert [each.detail for each in told] == ["it is the first in the queue", "1 job is before it in the queue"]


async def test_a_queued_job_of_a_tenant_without_compute_seconds_says_so(house):
    has_compute = False
    runner = await house.runner(has_compute=lambda tenant: has_compute)
    job = await house.submit(runner, steps=20)

    await waits(runner, job, "quota")
    has_compute = True
    runner.wake()

    assert (await until(runner, job)).waiting is None


@pytest.mark.parametrize("until", [None, 5.0])
async def test_a_job_whose_process_has_ended_waits_for_another_one(house, monkeypatch, until):
    runner, began, ended = await house.runner(), asyncio.Event(), asyncio.Event()

    async def long(*given: Any) -> Any:
        began.set()
        await ended.wait()

    monkeypatch.setattr(house.sessions, "write", long)
    job = await house.submit(runner)
    await began.wait()
    running = await runner.jobs.get("local", job.id)
    lapsed = replace(running, owner_until=until)
    ended.set()

    assert waiting_of(running, None, True) is None
    found = waiting_of(lapsed, None, True)
    assert (found.reason, found.since) == ("process", until or running.started)


async def test_a_paused_or_ended_job_waits_for_nothing(house):
    runner = await house.runner(limit=0)
    job = await house.submit(runner)
    for action in ("pause", "cancel"):
        found = await runner.jobs.ask("local", job.id, action)
        assert waiting_of(found, None, True) is None


async def test_a_call_that_waits_long_for_a_worker_is_told_until_it_runs(house, monkeypatch):
    monkeypatch.setattr(training, "TOLD_S", 0.05)
    runner, free, ended = await house.runner(), asyncio.Event(), asyncio.Event()
    write = house.sessions.write

    async def late(*given: Any) -> Any:
        async def in_queue() -> None:
            with in_line():
                await free.wait()

        await asyncio.create_task(in_queue())  # as a session that is rebuilt first
        await ended.wait()
        return await write(*given)

    monkeypatch.setattr(house.sessions, "write", late)
    job = await house.submit(runner, steps=20)
    told = await waits(runner, job, "worker")
    free.set()
    await waits(runner, job, None)
    ended.set()

    assert told.detail == WAITS["worker"]
    assert (await until(runner, job)).state == "succeeded"


def test_the_documentation_has_all_reasons():
    text = (ROOT / "docs" / "jobs.md").read_text().partition("| reason | the job waits because |")[2]
    rows = re.findall(r"^\| `([a-z]+)` \| (.*) \|$", text, re.MULTILINE)

    assert dict(rows[: len(WAITS)]) == WAITS
