"""The rows of jobs on both databases: leases, order, events."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import update

from service.http.sse import KEPT
from service.ids import new_id
from service.jobs import Job, JobStore, Spec
from service.jobs.curves import packed
from service.jobs.job import Progress
from service.jobs.store import Fenced, Turn
from service.problems import HttpProblem
from service.store.store import Store
from service.store.tables import job_events, jobs
from tests.service.store.conftest import make_store, store  # noqa: F401

pytestmark = pytest.mark.anyio
DATA = {"key": "datasets/a", "rows": 10, "columns": {"x": ["x"]}, "batch_size": 2, "drop_last": False}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def job(tenant: str = "t", priority: int = 5, queued: float | None = None, **more: Any) -> Job:
    spec = Spec("prg_1", "dst_1", "loss", {**DATA, "shuffle": True, "seed": 0, "holdout": 0}, steps=20, every=5, **more)
    now = time.time() if queued is None else queued
    return Job(new_id("job_"), tenant, new_id("ses_"), spec, priority, now, now)


async def test_a_job_comes_back_as_it_was_stored(store: Store):  # noqa: F811
    rows, made = JobStore(store, "a"), job(labels={"x": "y"}, deadline_s=9.0, metrics=["m"])
    await rows.add(made, [("state", {"state": "queued"})])
    found = await rows.get("t", made.id)
    assert (found.spec, found.progress, found.state, found.events) == (made.spec, made.progress, "queued", 1)
    with pytest.raises(HttpProblem):
        await rows.get("other", made.id)


async def test_two_processes_never_run_one_job(store: Store):  # noqa: F811
    one, other = JobStore(store, "a"), JobStore(store, "b")
    made = [job() for _ in range(6)]
    for each in made:
        await one.add(each, [])
    claimed = await asyncio.gather(*(rows.claim() for rows in (one, other) * 6))
    ids = [each.id for each in claimed if each is not None]
    while (more := await one.claim()) is not None:
        ids.append(more.id)
    assert sorted(ids) == sorted(each.id for each in made)


async def test_positions_count_the_queued_jobs_before_each_in_one_read(store: Store, monkeypatch):  # noqa: F811
    rows = JobStore(store, "a")
    made = [job(tenant, priority, queued) for tenant in "tu" for priority in (3, 7) for queued in (10.0, 11.0, 12.0)]
    for each in made:
        await rows.add(each, [])
    await rows.ask("t", made[3].id, "pause")
    found = [await rows.get(each.tenant, each.id) for each in made]
    reads, read = [], store.read
    monkeypatch.setattr(store, "read", lambda work: reads.append(work) or read(work))

    positions = await rows.positions(found)

    waiting = [each for each in found if each.state == "queued"]
    assert len(waiting) == len(made) - 1
    assert len(reads) == 1
    assert positions == {
        each.id: sum((-other.priority, other.queued) < (-each.priority, each.queued) for other in waiting)
        for each in waiting
    }
    assert await rows.positions([found[3]]) == {}


async def test_a_silent_process_loses_its_job_and_its_late_write_is_refused(store: Store):  # noqa: F811
    one, other = JobStore(store, "a"), JobStore(store, "b")
    await one.add(job(), [])
    mine = await one.claim()
    assert mine is not None
    assert await other.claim() is None
    await store.write(lambda c: c.execute(update(jobs).values(owner_until=time.time() - 1)))
    taken = await other.claim()
    assert taken is not None
    assert (taken.id, taken.epoch) == (mine.id, 2)
    curve = ("training", 1, 2, packed({"loss": [1.0, 2.0]}))
    with pytest.raises(Fenced):
        await one.advance(mine, Turn(Progress(step=2), [curve]))
    assert await other.curves(mine.id, "training") == []
    assert await other.advance(taken, Turn(Progress(step=2), [curve], [("progress", {})])) is None
    assert (await other.get("t", mine.id)).progress.step == 2
    await other.ask("t", mine.id, "pause")
    assert await other.advance(taken, Turn(Progress(step=2))) == "pause"
    page = await other.events(mine.id, 0, 100)
    assert [each.id for each in page.events] == list(range(1, page.newest + 1))
    await one.renew([mine.id])
    await one.release()
    assert await one.claim() is None, "the job belongs to the other process"


async def test_a_job_that_was_claimed_without_an_answer_is_claimed_again(store: Store, monkeypatch):  # noqa: F811
    """The process does not know that it has the job, so that it must not keep it."""
    rows = JobStore(store, "a")
    await rows.add(job(), [])
    lost = await rows.claim()
    assert lost is not None
    monkeypatch.setattr("service.jobs.store.time.time", lambda now=time.time: now() + 3600.0)
    await rows.renew([])

    again = await JobStore(store, "b").claim()

    assert again is not None and again.id == lost.id


async def test_a_turn_whose_end_was_not_told_can_be_repeated(store: Store):  # noqa: F811
    rows = JobStore(store, "a")
    await rows.add(job(), [])
    mine = await rows.claim()
    assert mine is not None
    curves = [("training", 1, 2, packed({"loss": [1.0, 2.0]}))]
    for running_s in (1.0, 2.0):
        await rows.advance(mine, Turn(Progress(step=2, running_s=running_s), curves, [("progress", {"step": 2})]))

    (row,) = await rows.curves(mine.id, "training")
    assert list(row.columns["loss"]) == [1.0, 2.0]
    said = [each.kind for each in (await rows.events(mine.id, 0, 100)).events]
    assert said.count("progress") == 1
    assert (await rows.get("t", mine.id)).progress.running_s == 2.0


async def test_waiting_jobs_past_their_deadline_end(store: Store):  # noqa: F811
    rows = JobStore(store, "a")
    late, fresh, started = job(deadline_s=1.0, queued=time.time() - 5), job(deadline_s=60.0), job(deadline_s=1.0)
    started.created, started.started, started.state = time.time() - 5, time.time(), "paused"
    for each in (late, fresh, started):
        await rows.add(each, [])
    assert sorted(each.id for each in await rows.expire()) == sorted([late.id, started.id])
    found = [await rows.get("t", each.id) for each in (late, fresh, started)]
    assert [(each.state, each.reason) for each in found] == [
        ("aborted", "deadline"), ("queued", None), ("canceled", "deadline"),
    ]  # fmt: skip


async def test_the_last_events_are_kept(store: Store):  # noqa: F811
    rows, made = JobStore(store, "a"), job()
    await rows.add(made, [("state", {})])
    mine = await rows.claim()
    assert mine is not None
    first = (await rows.get("t", made.id)).events
    await rows.advance(mine, Turn(Progress(step=1), said=[("message", {"i": i}) for i in range(KEPT)]))
    await rows.advance(mine, Turn(Progress(step=2), said=[("last", {})]))
    page = await rows.events(made.id, first + KEPT - 1, 10)
    assert (page.newest, page.oldest) == (first + KEPT + 1, first + 2)
    assert [each.kind for each in page.events] == ["message", "last"]
    count = await store.read(lambda c: len(c.execute(job_events.select()).all()))
    assert count == KEPT


@pytest.mark.parametrize(
    ("state", "asked", "action", "after"),
    [
        ("queued", None, "pause", ("paused", None)),
        ("queued", None, "resume", ("queued", None)),
        ("running", None, "pause", ("pausing", "pause")),
        ("running", None, "cancel", ("running", "cancel")),
        ("running", "cancel", "pause", ("running", "cancel")),
        ("pausing", "pause", "pause", ("pausing", "pause")),
        ("pausing", "pause", "resume", ("running", None)),
        ("pausing", "pause", "cancel", ("pausing", "cancel")),
        ("paused", None, "resume", ("queued", None)),
        ("paused", None, "cancel", ("aborted", None)),
        ("canceled", None, "cancel", ("canceled", None)),
        ("succeeded", None, "cancel", None),
        ("canceled", None, "pause", None),
        ("failed", None, "resume", None),
    ],
)
async def test_actions_follow_the_table_of_states(tmp_path, state, asked, action, after):
    store = Store(tmp_path)  # noqa: F811
    await store.open()
    rows, made = JobStore(store, "a"), job()
    made.state, made.asked = state, asked
    await rows.add(made, [])
    if after is None:
        with pytest.raises(HttpProblem) as caught:
            await rows.ask("t", made.id, action)
        assert state not in caught.value.extensions["allowed_states"]
    else:
        for _ in range(2):
            found = await rows.ask("t", made.id, action)
            assert (found.state, found.asked) == after
    await store.close()
