"""Two processes of the service on one store: a call takes effect and counts once, whatever the other one repeats."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from service.engine import QueueFull, WorkerLost
from service.problems import HttpProblem
from service.sessions.registry import Write
from service.store.errors import StorageUnavailable
from tests.service.sessions.fake_service import Process, tensor
from tests.service.sessions.two_processes import STEPPED, opened, step, until_stored

pytestmark = pytest.mark.anyio

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


async def test_gradients_of_outdated_values_are_not_streamed(pair):
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
