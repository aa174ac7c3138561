"""Two processes of the service on one store: a process leaves sessions alone that the other one uses."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Collection
from typing import Any

import pytest

from service.engine import DeadlineExceeded, NoCapacity, QueueFull, RemoteError
from service.ids import REPEATABLE, Repeatable
from service.problems import HttpProblem
from service.sessions import copies
from service.sessions.epoch import Fenced
from service.sessions.registry import Write
from service.sessions.session import Session
from service.store.errors import StorageFull, StorageUnavailable
from tests.service.sessions.fake_service import Process
from tests.service.sessions.two_processes import LEASE_S, STEPPED, opened, step

pytestmark = pytest.mark.anyio


async def read_step(process: Process, id: str) -> int:
    found = await process.registry.find("local", id, reads=True)
    return (await process.registry.read(found, "session.get", {}, {}, 5.0)).result["step"]


async def test_a_read_at_another_process_on_a_full_database_is_to_be_sent_again(pair, monkeypatch):
    """Taking a session over is a write. The read itself needs no space, so that 507 would be wrong."""
    first, second = pair
    id = await opened(first)
    await step(first, id)

    async def full(work: Any) -> None:
        raise StorageFull("no space is left for stored data")

    with monkeypatch.context() as patch:
        patch.setattr(second, "write", full)
        with pytest.raises(StorageUnavailable) as refused:
            await second.registry.find("local", id, reads=True)
        with pytest.raises(StorageFull):
            await second.registry.find("local", id)
        assert await read_step(first, id) == 1

    assert "the process that has the session answers" in refused.value.detail
    assert (refused.value.status, refused.value.retryable, refused.value.headers) == (503, True, {"Retry-After": "5"})
    assert await read_step(second, id) == 1


async def test_a_lease_that_passed_in_one_process_does_not_end_a_session_that_another_uses(pair):
    first, second = pair
    id = await opened(first)
    (await step(first, id)).used -= 2 * LEASE_S
    await step(second, id)

    await first.registry.sweep()

    assert (await step(second, id)).step == 3
    assert first.registry.held("local", id) is None


async def test_a_call_longer_than_the_lease_keeps_its_session_from_the_sweeps_of_other_processes(pair):
    first, second = pair
    id = await opened(first)
    session = await step(first, id)
    session.used -= 2 * LEASE_S  # as if the call had begun then
    async with session.turn:
        await first.registry.sweep()
        second.registry._started -= 4 * LEASE_S

        await second.registry.sweep()

    assert (await first.registry.seen("local", id, 5.0)).step == 1


@pytest.mark.parametrize(
    "error",
    [HttpProblem("not-found", "deleted"), HttpProblem("gone", "deleted"), Fenced()],
    ids=["404", "410", "fenced"],
)
async def test_the_sweep_goes_on_after_a_session_that_another_process_deletes_meanwhile(pair, monkeypatch, error):
    first, second = pair
    deleted, other = await opened(first), await opened(first)
    for id in deleted, other:
        session = await step(first, id)
        session.used -= 2 * LEASE_S
    await first.registry.stop()
    second.registry._started -= 4 * LEASE_S
    found: list[str] = []

    async def unused(now: float, limit: int, suspended: Collection[str]) -> list[tuple[str, str, float]]:
        return [("local", deleted, LEASE_S), ("local", other, LEASE_S)]

    find = second.registry.find

    async def meanwhile(tenant: str, id: str) -> Session:
        found.append(id)
        if id == deleted:
            raise error
        return await find(tenant, id)

    monkeypatch.setattr(second.registry._stored, "unused_since", unused)
    monkeypatch.setattr(second.registry, "find", meanwhile)

    await second.registry.sweep()

    assert found == [deleted, other]
    assert second.registry.why_closed(("local", other)) is not None


async def test_a_session_that_is_being_rebuilt_is_seen_at_the_step_of_its_last_answered_call(pair):
    first, second = pair
    id = await opened(first)
    for _ in range(3):
        await step(first, id)
    session = await second.registry.find("local", id)  # taken over, in no worker yet
    async with session.turn:
        assert (await second.registry.seen("local", id, 5.0)).step == 3


async def test_a_process_never_steps_a_session_with_checkpoints_alone_that_another_has_taken_over(pair):
    first, second = pair
    id = await opened(first, "checkpoint")
    await step(first, id)
    with pytest.raises(HttpProblem, match="goes on from its checkpoint at step 0"):
        await step(second, id)
    await step(second, id)

    with pytest.raises(HttpProblem, match="goes on from its checkpoint at step 0"):
        await step(first, id)


@pytest.mark.parametrize("held", [False, True], ids=["never held", "held before"])
async def test_a_read_at_another_process_does_not_undo_steps_after_the_checkpoint(pair, held):
    """While the process that has them lives. When they are saved, or that has ended, it is answered."""
    first, second = pair
    id = await opened(first, "checkpoint")
    if held:
        await second.registry.save(await step(second, id), 5.0)
    before = (await step(first, id)).step

    async def read() -> int:
        found = await second.registry.find("local", id, reads=True)
        return (await second.registry.read(found, "session.get", {}, {}, 5.0)).result["step"]

    with pytest.raises(HttpProblem, match="would be lost") as caught:
        await read()

    assert (caught.value.status, caught.value.retryable) == (503, True)
    assert (await step(first, id)).step == before + 1
    await first.registry.save(first.registry.held("local", id), 5.0)
    assert await read() == before + 1


async def test_no_process_takes_a_session_back_in_order_to_save_it(pair):
    first, second = pair
    id = await opened(first, "checkpoint")
    before = await step(first, id)
    with pytest.raises(HttpProblem, match="goes on from its checkpoint"):
        await step(second, id)
    await step(second, id)
    before.saved_at -= 100.0  # due

    first.registry._changed(before)
    await asyncio.sleep(0.05)
    await first.registry.sweep()

    assert (await step(second, id)).step == 2


async def test_a_session_that_another_process_deleted_is_seen_no_more(pair):
    first, second = pair
    id = await opened(first)
    await step(first, id)
    await second.registry.close("local", id)

    assert await first.registry.page("local", "", 10) == []
    with pytest.raises(HttpProblem, match="no session"):
        await first.registry.seen("local", id, 5.0)
    assert first.pool.calls["session.delete"] == 1


async def test_two_executions_of_one_request_open_one_session(pair):
    async def once(process: Process) -> str:
        REPEATABLE.set(Repeatable(b"request"))
        return await opened(process)

    tasks = [asyncio.create_task(once(each), context=contextvars.copy_context()) for each in pair]
    first, second = await asyncio.gather(*tasks)

    assert first == second
    assert len(await pair[0].registry.page("local", "", 10)) == 1
    assert (await step(pair[0], first)).step == 1
    assert (await step(pair[1], first)).step == 2


@pytest.mark.parametrize("at", ["session.create", "session.step"])
async def test_a_session_deleted_while_it_is_rebuilt_leaves_no_copy_in_a_worker(pair, monkeypatch, at):
    process, _ = pair
    id = await opened(process)
    await step(process, id)
    session = process.registry.held("local", id)
    process.pool.kill(session.worker)
    call, begun = process.pool.call, asyncio.Event()

    async def slow(op: str, *more: Any, **named: Any) -> Any:
        reply = await call(op, *more, **named)
        if op == at:
            begun.set()
            await asyncio.sleep(0.2)
        return reply

    monkeypatch.setattr(process.pool, "call", slow)
    with pytest.raises(HttpProblem, match="is being rebuilt"):
        await process.registry.read(session, "session.get", {}, {}, 0.05)
    await begun.wait()

    await process.registry.close("local", id)

    assert not any(process.pool.held.values())


@pytest.mark.parametrize(
    "failure",
    [
        NoCapacity("the engine is stopping"),
        QueueFull("the queue is full"),
        RemoteError("memory", "out_of_memory", "full", {}),
        StorageUnavailable("the store failed"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_call_that_waits_in_the_journal_for_a_worker_is_not_told_as_one_that_did_not_happen(
    pair, monkeypatch, failure
):
    """Its worker ended, and the session cannot be rebuilt: the call runs when it can be."""
    process, other = pair
    id = await opened(process)
    await step(process, id)
    call = process.pool.call

    async def failing(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        if op == "session.step":
            process.pool.kill(named["worker"])
            process.pool.held.clear()
        elif op in ("session.create", "session.restore"):
            raise failure
        return await call(op, args, *more, **named)

    monkeypatch.setattr(process.pool, "call", failing)
    with pytest.raises(HttpProblem) as caught:
        await step(process, id)
    assert (caught.value.code, "send it again" in caught.value.detail) == ("recovering", True)
    process.end()

    assert (await step(other, id)).step == 3


async def test_a_copy_in_a_busy_worker_is_deleted_when_the_worker_is_free(pair, monkeypatch):
    """Also if the session is in the same process again by then: its new copy stays."""
    monkeypatch.setattr(copies, "DELETE_S", 0.05)
    monkeypatch.setattr(copies, "AGAIN_S", 0.01)
    first, second = pair
    for worker in list(first.pool.held)[1:]:
        first.pool.held.pop(worker)
    id = await opened(first)
    await step(first, id)
    await step(second, id)
    call, free = first.pool.call, asyncio.Event()

    async def busy(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        if op == "session.delete" and not free.is_set():
            await asyncio.sleep(0.1)
            raise DeadlineExceeded("the worker runs something else", waited=True)
        return await call(op, args, *more, **named)

    monkeypatch.setattr(first.pool, "call", busy)

    assert (await step(first, id)).step == 3
    (held,) = first.pool.held.values()
    assert len(held) == 2
    free.set()
    for _ in range(500):
        if len(held) > 1:
            await asyncio.sleep(0.01)

    assert len(held) == 1
    assert (await step(first, id)).step == 4


async def test_files_of_sessions_that_exist_are_named(pair):
    first, _ = pair
    id = await opened(first)
    mine, others = {f"journal/{id}/1-1", f"sessions/{id}/1-1"}, {"journal/ses_none/1-1", "sessions/ses_none/1-1"}

    assert await first.registry.named(mine | others) == mine


@pytest.mark.parametrize("durability", ["journal", "checkpoint"])
async def test_a_condition_is_compared_with_the_version_of_the_process_that_holds_the_session(pair, durability):
    """The first process still remembers the version before the step of the second one."""
    first, second = pair
    id = await opened(first, durability)
    stale = await first.registry.find("local", id)
    known = stale.etag
    await step(second, id)
    await second.registry.save(await second.registry.find("local", id), 5.0)
    registry = first.registry

    def write(etag: str) -> Write:
        return Write("session.step", {}, {}, None, "", None, STEPPED, accepts=lambda present: present == etag)

    with pytest.raises(HttpProblem, match="has changed since the version in If-Match"):
        await registry.write(stale, write(known), 5.0)
    present = await registry.find("local", id)
    await registry.write(present, write(present.etag), 5.0)

    assert (known, present.step) == ('"e1.v0"', 2)
