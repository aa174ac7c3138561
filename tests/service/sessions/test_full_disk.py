"""Sessions on a full disk: a call that does not fit makes room, and sessions can be read."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from service.problems import HttpProblem
from service.sessions import journal
from service.sessions.changes import Write
from service.sessions.creation import Creation, Terms
from service.sessions.session import Durability, Session
from service.store.errors import StorageFull
from tests.service.sessions.fake_service import Process, tensor

pytestmark = pytest.mark.anyio


def full(*_: object) -> None:
    raise StorageFull("no space is left")


async def values(process: Process, id: str) -> tuple[int, int]:
    """(step, weight) of the session."""
    found = await process.registry.find("local", id, reads=True)
    result = (await process.registry.read(found, "session.get", {}, {}, 60.0)).result
    return result["step"], result["weight"]


async def step(process: Process, id: str) -> None:
    write = Write("session.step", {}, {"x": tensor(5)}, None, "", None, {"as_file": False, "members": {}})
    await process.registry.write(await process.registry.find("local", id), write, 60.0)


async def opened(process: Process, durability: Durability = "journal") -> Session:
    about: dict[str, Any] = {"optimizer": {"rate": 3}}
    return await process.registry.open(
        Creation("session.create", {"query": {}}, {}, ("prg_1", b"{}")), Terms(100.0, about, durability), deadline=60.0
    )


def weight_after(steps: int) -> int:
    """The weight of a session after steps with 5; see `Model.apply`."""
    weight, moment = 1, 0
    for _ in range(steps):
        moment = moment * 5 + 5
        weight = weight * 3 + moment
    return weight


async def test_a_call_that_finds_a_full_disk_lets_its_session_be_saved(process, monkeypatch):
    monkeypatch.setattr(journal, "INLINE_BYTES", 0)  # each entry with tensors has a file
    session = await opened(process)
    for _ in range(3):
        await step(process, session.id)
    write = process.objects.write

    def full(key: str, *more: Any) -> Any:
        if key.startswith("journal/"):
            raise OSError(errno.ENOSPC, "no space left")
        return write(key, *more)

    monkeypatch.setattr(process.objects, "write", full)
    with pytest.raises(StorageFull):
        await step(process, session.id)
    async with asyncio.timeout(60):
        while session.saved_step < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    assert (session.step, [*process.objects.keys("journal")]) == (3, [])
    monkeypatch.setattr(process.objects, "write", write)
    await step(process, session.id)
    assert session.step == 4


async def test_a_session_is_read_on_a_full_disk_after_the_end_of_its_process(process, monkeypatch):
    session = await opened(process)
    for _ in range(3):
        await step(process, session.id)
    process.end()
    later = Process(process.store, process.objects, process.faults, process.settings)
    with monkeypatch.context() as patch:
        patch.setattr(later, "write", full)
        assert (await later.registry.seen("local", session.id, 60.0)).weights_version == "e1.v3"
        assert await values(later, session.id) == (3, weight_after(3))
        with pytest.raises(StorageFull):
            await step(later, session.id)

    await step(later, session.id)
    assert await values(later, session.id) == (4, weight_after(4))
    last = Process(process.store, process.objects, process.faults, process.settings)
    assert await values(last, session.id) == (4, weight_after(4))


async def test_a_session_without_a_journal_is_read_on_a_full_disk_from_its_checkpoint(process, monkeypatch):
    session = await opened(process, "checkpoint")
    await step(process, session.id)
    await process.registry.save(session, 60.0)
    await step(process, session.id)
    process.end()
    later = Process(process.store, process.objects, process.faults, process.settings)
    with monkeypatch.context() as patch:
        patch.setattr(later, "write", full)
        with pytest.raises(HttpProblem, match="goes on from its checkpoint at step 1"):
            await values(later, session.id)
        assert await values(later, session.id) == (1, weight_after(1))

    await step(later, session.id)
    assert await values(later, session.id) == (2, weight_after(2))


async def test_a_session_is_read_on_a_full_disk_after_a_call_that_did_not_fit(process, monkeypatch):
    session = await opened(process)
    await step(process, session.id)
    with monkeypatch.context() as patch:
        patch.setattr(process, "write", full)
        with pytest.raises(StorageFull):
            await step(process, session.id)
        assert (await process.registry.seen("local", session.id, 60.0)).weights_version == "e1.v1"
        assert await values(process, session.id) == (1, weight_after(1))

    await step(process, session.id)
    assert await values(process, session.id) == (2, weight_after(2))
