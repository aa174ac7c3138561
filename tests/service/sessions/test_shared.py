"""Two processes of the service on one store: a process leaves sessions alone that the other one uses."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service.engine import DeadlineExceeded, NoCapacity, QueueFull, RemoteError, WorkerLost
from service.ids import REPEATABLE, Repeatable
from service.objects import Objects
from service.problems import HttpProblem
from service.sessions import copies, journal
from service.sessions.creation import Creation, Terms
from service.sessions.epoch import Fenced
from service.sessions.registry import Write
from service.sessions.session import Session
from service.settings import Settings
from service.store import tables
from service.store.errors import StorageFull, StorageUnavailable
from service.store.store import Store
from tests.service.sessions.fake_service import Faults, Process, tensor

pytestmark = pytest.mark.anyio

LEASE_S = 100.0
STEPPED = {"as_file": False, "members": {}}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Process, Process]]:
    store = Store(tmp_path)
    await store.open()
    objects, settings = Objects(str(tmp_path / "objects")), Settings(checkpoint_interval=60.0)
    first, second = (Process(store, objects, Faults(random.Random(0)), settings, shared=True) for _ in range(2))
    yield first, second
    await store.close()


@pytest.fixture
def small_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry with tensors has a file."""
    monkeypatch.setattr(journal, "INLINE_BYTES", 0)


async def opened(process: Process, durability: Any = "journal") -> str:
    about: dict[str, Any] = {"optimizer": {"rate": 3}}
    session = await process.registry.open(
        Creation("session.create", {"query": {}}, {"w": tensor(1)}, ("prg_1", b"{}")),
        Terms(LEASE_S, about, durability),
        deadline=5.0,
    )
    return session.id


async def step(process: Process, id: str) -> Session:
    registry = process.registry
    await registry.write(await registry.find("local", id), Write("session.step", {}, {}, None, "", None, STEPPED), 5.0)
    held = registry.held("local", id)
    assert held is not None
    return held


async def read_step(process: Process, id: str) -> int:
    found = await process.registry.find("local", id, reads=True)
    return (await process.registry.read(found, "session.get", {}, {}, 5.0)).result["step"]


async def until_stored(process: Process, id: str) -> None:
    """Wait until the journal has the entry of the call that runs in `process`."""
    session = process.registry.held("local", id)
    assert session is not None
    newest = select(func.max(tables.journal.c.n)).where(tables.journal.c.session == id)
    while await process.store.read(lambda connection: connection.execute(newest).scalar_one()) <= session.entry:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


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

    async def unused(now: float, limit: int) -> list[tuple[str, str, float]]:
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


ENDS = ["its worker ends", "it is stopped between steps", "the queue is full", "all goes well"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("numbered", [False, True])
async def test_a_call_counts_once_though_another_process_repeats_it_meanwhile(pair, monkeypatch, end, numbered):
    """The journal has the entry when the other process takes the session over, and so repeats the call. The version
    that its client accepts is that of before it."""
    first, second = pair
    id = await opened(first)
    await step(first, id)
    call, taken = first.pool.call, False

    async def slow(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        nonlocal taken
        if op != "session.step" or taken:
            return await call(op, args, *more, **named)
        taken = True
        reply = await call(op, args, *more, **named) if end != "the queue is full" else None
        await until_stored(first, id)
        await second.registry.read(await second.registry.find("local", id), "session.get", {}, {}, 5.0)
        if end == "its worker ends":
            first.pool.kill(named["worker"])
            raise WorkerLost(named["worker"], "killed")
        if reply is None:
            raise QueueFull("the queue is full")
        if end == "it is stopped between steps":
            reply.result.update({"applied": 2, "stopped": {"code": "not_finite", "detail": "stopped", "batch": 2}})
        return reply

    monkeypatch.setattr(first.pool, "call", slow)
    seq, known = 2 if numbered else None, '"e1.v1"'
    write = Write("session.step", {"batches": 4}, {}, seq, "four", None, STEPPED, accepts=lambda etag: etag == known)

    answer, _ = await first.registry.write(await first.registry.find("local", id), write, 5.0)

    assert taken and b'"step":5' in b"".join(answer.parts)
    assert (await step(second, id)).step == 6


async def test_a_change_without_a_number_takes_effect_once_though_another_process_repeats_it_meanwhile(
    pair, monkeypatch
):
    first, second = pair
    id = await opened(first)
    call, taken = first.pool.call, False

    async def slow(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        nonlocal taken
        reply = await call(op, args, *more, **named)
        if op == "session.configure" and not taken:
            taken = True
            await until_stored(first, id)
            await second.registry.read(await second.registry.find("local", id), "session.get", {}, {}, 5.0)
            first.pool.kill(named["worker"])
            raise WorkerLost(named["worker"], "killed")
        return reply

    monkeypatch.setattr(first.pool, "call", slow)
    session = await first.registry.find("local", id)
    before = session.etag

    reply = await first.registry.change(
        session, "session.configure", lambda session: {"rate": 7, "shown": {}}, {}, lambda etag: etag == before, 5.0
    )

    assert taken and reply.result["version"] == 1


@pytest.mark.parametrize("fault", ["none", "store", "worker", "taken over"])
async def test_the_steps_of_a_call_count_once_in_the_usage(pair, monkeypatch, fault):
    """Also if it is sent again, or if workers repeat it."""
    first, second = pair
    counted: list[tuple[str, int]] = []
    for process in pair:
        process.registry.stepped = lambda tenant, steps: counted.append((tenant, steps))
    id = await opened(first)
    write, call, failed = first.write, first.pool.call, False

    async def failing(work: Any) -> Any:
        nonlocal failed
        if fault == "store" and "append" in work.__qualname__ and not failed:
            failed = True
            raise StorageUnavailable("the store is away")
        return await write(work)

    async def disturbed(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        nonlocal failed
        reply = await call(op, args, *more, **named)
        if op == "session.step" and fault in ("worker", "taken over") and not failed:
            failed = True
            await until_stored(first, id)
            if fault == "taken over":
                await second.registry.read(await second.registry.find("local", id), "session.get", {}, {}, 5.0)
            first.pool.kill(named["worker"])
            raise WorkerLost(named["worker"], "killed")
        return reply

    monkeypatch.setattr(first, "write", failing)
    monkeypatch.setattr(first.pool, "call", disturbed)
    for seq in (1, 2, 3):
        several = Write("session.step", {"batches": 4}, {}, seq, "four", None, STEPPED)
        for _ in range(3):  # the client did not get the answer
            with contextlib.suppress(StorageUnavailable):
                await first.registry.write(await first.registry.find("local", id), several, 5.0)

    assert failed or fault == "none"
    assert counted == [("local", 4)] * 3


async def test_a_session_that_another_process_holds_is_seen_at_its_exact_position(pair):
    """After calls of each kind, also after those that end early, and after a loss of the worker."""
    first, second = pair
    id = await opened(first)
    first.faults.stop = 0.3
    rng = random.Random(3)
    registry = first.registry
    for i in range(60):
        if i % 20 == 10:
            first.pool.kill(registry.held("local", id).worker)
        op, args = rng.choice(
            [
                ("session.step", {}),
                ("session.step", {"batches": 4}),
                ("session.gradients", {}),
                ("session.gradients", {"writes_states": True}),
                ("session.update", {}),
                ("session.discard", {}),
                ("session.configure", {"rate": rng.randrange(9)}),
            ]
        )
        session = await registry.find("local", id)
        if op in ("session.discard", "session.configure"):
            await registry.change(session, op, lambda session, args=args: args, {}, lambda etag: True, 5.0)
        else:
            await registry.write(session, Write(op, args, {}, None, op, None, STEPPED), 5.0)

        held, seen = registry.held("local", id), await second.registry.seen("local", id, 5.0)

        assert second.registry.held("local", id) is None
        wanted, found = ((each.seq, each.step, each.version, each.accumulated) for each in (held, seen))
        assert found == wanted, op


@pytest.mark.usefixtures("small_entries")
async def test_a_call_that_another_process_repeats_up_to_its_failure_keeps_its_tensors(pair, monkeypatch):
    """Its entry gets the outcome there, and a third rebuilding reads the same file."""
    first, second = pair
    id = await opened(first)
    call, taken, ended = first.pool.call, False, asyncio.Event()

    async def ending(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        nonlocal taken
        if op == "session.step" and not taken:
            taken = True
            await until_stored(first, id)
            first.end()
            ended.set()
        return await call(op, args, *more, **named)

    async def stopping(op: str, *more: Any, **named: Any) -> Any:
        reply = await repeat(op, *more, **named)
        if op == "session.step" and "only" not in more[0]:
            reply.result.update({"applied": 2, "stopped": {"code": "not_finite", "detail": "stopped", "batch": 2}})
        return reply

    repeat = second.pool.call
    monkeypatch.setattr(first.pool, "call", ending)
    monkeypatch.setattr(second.pool, "call", stopping)
    write = Write("session.step", {"batches": 4}, {"x": tensor(5)}, 1, "four", None, STEPPED)
    lost = asyncio.create_task(first.registry.write(await first.registry.find("local", id), write, 5.0))
    await ended.wait()

    for _ in range(2):
        session = await second.registry.find("local", id)
        await second.registry.read(session, "session.get", {}, {}, 5.0)
        second.pool.kill(second.registry.held("local", id).worker)

    assert [each.stopped["applied"] for _, each in await second.registry._stored.journal.entries(session, 0)] == [2]
    lost.cancel()


@pytest.mark.parametrize("kind", ["change", "step"])
@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])
async def test_a_call_is_not_taken_for_that_of_another_process_when_the_store_fails(pair, monkeypatch, kind, stored):
    """The other process has taken the session over, and has made an equal call with the same number."""
    first, second = pair
    id = await opened(first)
    await step(first, id)

    async def act(process: Process, rate: int) -> None:
        found = await process.registry.find("local", id)
        if kind == "step":
            write = Write("session.step", {}, {}, None, "", None, STEPPED)
            await process.registry.write(found, write, 5.0)
        else:
            change = lambda session: {"rate": rate}
            await process.registry.change(found, "session.configure", change, {}, lambda etag: True, 5.0)

    write, failed = first.write, False

    async def failing(work: Any) -> Any:
        nonlocal failed
        if "append" in work.__qualname__ and not failed:
            failed = True
            if stored:
                await write(work)
            await act(second, 5)
            raise StorageUnavailable("the store is away")
        return await write(work)

    monkeypatch.setattr(first, "write", failing)

    await act(first, 7)

    reply = await second.registry.read(await second.registry.find("local", id), "session.get", {}, {}, 5.0)
    assert failed
    if kind == "step":
        assert reply.result["step"] == 3
    else:
        assert (reply.result["version"], reply.result["rate"]) == (3, 5 if stored else 7)


async def test_gradients_of_values_that_are_out_of_date_are_not_streamed(pair):
    first, second = pair
    id = await opened(first)
    await step(first, id)
    session = first.registry.held("local", id)
    await step(second, id)
    calls, parts = first.pool.calls["session.gradients"], []

    await first.registry.read(session, "session.gradients", {}, {}, 5.0, lambda result, arrays: parts.append(result))

    assert first.pool.calls["session.gradients"] == calls + 1


@pytest.mark.parametrize("stored", [False, True], ids=["entry not stored", "entry stored"])
@pytest.mark.parametrize("changed", [False, True], ids=["same values", "other values"])
async def test_a_streamed_step_that_another_process_takes_over_sends_each_gradient_once(
    pair, monkeypatch, stored, changed
):
    """With other values than those of the gradients that have left, the step is not taken."""
    first, second = pair
    id = await opened(first)
    await step(first, id)
    call, append, taken, parts = first.pool.call, first.registry._stored.journal.append, asyncio.Event(), []

    async def taking(op: str, args: dict[str, Any], *more: Any, **named: Any) -> Any:
        reply = await call(op, args, *more, **named)
        if op == "session.step" and named.get("on_part") is not None:
            for name in "ab":
                named["on_part"]({"name": name, "version": args["seq"]}, {})
            if stored:
                await until_stored(first, id)
            if not taken.is_set():
                found = await second.registry.find("local", id)
                if changed and not stored:
                    change = lambda session: {"rate": 7}
                    await second.registry.change(found, "session.configure", change, {}, lambda etag: True, 5.0)
                taken.set()
        return reply

    async def late(*args: Any) -> Any:
        if not stored:
            await taken.wait()
        return await append(*args)

    monkeypatch.setattr(first.pool, "call", taking)
    monkeypatch.setattr(first.registry._stored.journal, "append", late)
    session = await first.registry.find("local", id)
    write = Write("session.step", {}, {}, 2, "", None, STEPPED, on_part=lambda result, arrays: parts.append(result))

    if changed and not stored:
        with pytest.raises(HttpProblem, match="changed the session") as caught:
            await first.registry.write(session, write, 5.0)
        assert caught.value.retryable
    else:
        await first.registry.write(session, write, 5.0)

    assert [each["name"] for each in parts] == ["a", "b"]
    assert (await step(second, id)).step == (2 if changed and not stored else 3)


@pytest.mark.parametrize("failing", ["append", "rewrite"])
@pytest.mark.parametrize("seq", [None, 2])
async def test_a_call_whose_entry_may_be_stored_though_the_store_failed_is_not_told_as_one_that_did_not_happen(
    pair, monkeypatch, seq, failing
):
    """With a number it can be sent again; without one nobody knows."""
    first, second = pair
    id = await opened(first)
    await step(first, id)
    write, call, fails = first.write, first.pool.call, False

    async def stopped(op: str, *more: Any, **named: Any) -> Any:
        reply = await call(op, *more, **named)
        if op == "session.step" and failing == "rewrite":
            reply.result.update({"applied": 1, "stopped": {"code": "not_finite", "detail": "stopped", "batch": 1}})
        return reply

    async def lost(work: Any) -> Any:
        nonlocal fails
        if fails:
            raise StorageUnavailable("the store is away")
        if failing in work.__qualname__:
            fails = True
            await write(work)
            raise StorageUnavailable("the answer is lost")
        return await write(work)

    monkeypatch.setattr(first, "write", lost)
    monkeypatch.setattr(first.pool, "call", stopped)
    session = await first.registry.find("local", id)
    with pytest.raises(HttpProblem) as caught:
        await first.registry.write(session, Write("session.step", {}, {}, seq, "", None, STEPPED), 5.0)
    assert caught.value.code == ("outcome-unknown" if seq is None else "storage-unavailable")
    first.end()

    again = Write("session.step", {}, {}, 2, "", None, STEPPED)
    _, replayed = await second.registry.write(await second.registry.find("local", id), again, 5.0)
    assert replayed


async def test_requests_at_the_same_time_share_the_quota_of_sessions(pair):
    first, _ = pair
    limits = Settings(sessions=3)
    first.registry.quota = lambda tenant: limits

    found = await asyncio.gather(*(opened(first) for _ in range(6)), return_exceptions=True)

    refused = [each for each in found if isinstance(each, HttpProblem)]
    assert [each.code for each in refused] == ["quota-exceeded"] * 3


async def test_a_session_that_is_stored_but_not_open_yet_counts_once(pair):
    first, _ = pair
    limits = Settings(sessions=2)
    first.registry.quota = lambda tenant: limits
    add, stored, go_on = first.registry._stored.add, asyncio.Event(), asyncio.Event()

    async def slow_add(*args: Any) -> None:
        await add(*args)
        stored.set()
        await go_on.wait()

    first.registry._stored.add = slow_add
    slow = asyncio.create_task(opened(first))
    await stored.wait()
    first.registry._stored.add = add

    await opened(first)

    go_on.set()
    await slow


@pytest.mark.usefixtures("small_entries")
@pytest.mark.parametrize("limits", [Settings(session_bytes=20), Settings(sessions=2)], ids=["bytes", "number"])
async def test_requests_to_two_processes_at_the_same_time_share_the_quotas(pair, limits):
    """Sessions of the fake workers have 8 bytes each."""
    for process in pair:
        process.registry.quota = lambda tenant: limits

    found = await asyncio.gather(*(opened(pair[i % 2]) for i in range(6)), return_exceptions=True)

    assert [each.code for each in found if isinstance(each, HttpProblem)] == ["quota-exceeded"] * 4
    assert len([*pair[0].objects.keys("journal")]) == 2
    assert sum(len(held) for process in pair for held in process.pool.held.values()) == 2


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
