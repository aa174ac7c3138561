"""A session whose call does not fit on the disk makes room: it is saved, and its journal is emptied."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from service.sessions import stored
from service.sessions.changes import Write
from service.store.errors import StorageFull
from tests.service.sessions.fake_service import Process, tensor

pytestmark = pytest.mark.anyio


async def step(process: Process, id: str) -> None:
    write = Write("session.step", {}, {"x": tensor(5)}, None, "", None, {"as_file": False, "members": {}})
    await process.registry.write(await process.registry.find("local", id), write, 60.0)


async def test_a_call_that_finds_a_full_disk_lets_its_session_be_saved(process, monkeypatch):
    monkeypatch.setattr(stored, "INLINE_BYTES", 0)  # each entry with tensors has a file
    about: dict[str, Any] = {"optimizer": {"rate": 3}}
    session = await process.registry.open(
        {"query": {}}, {}, program=("prg_1", b"{}"), lease_s=100.0, deadline=60.0, about=about, durability="journal"
    )
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
