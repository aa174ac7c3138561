"""Sessions that two processes of the service use: `pair` of `conftest` makes the processes."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import func, select

from service.sessions.creation import Creation, Terms
from service.sessions.registry import Write
from service.sessions.session import Session
from service.store import tables
from tests.service.sessions.fake_service import Process, tensor

LEASE_S = 100.0
STEPPED = {"as_file": False, "members": {}}


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


async def until_stored(process: Process, id: str) -> None:
    """Wait until the journal has the entry of the call that runs in `process`."""
    session = process.registry.held("local", id)
    assert session is not None
    newest = select(func.max(tables.journal.c.n)).where(tables.journal.c.session == id)
    while await process.store.read(lambda connection: connection.execute(newest).scalar_one()) <= session.entry:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
