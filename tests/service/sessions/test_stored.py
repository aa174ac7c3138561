"""Stored sessions on PostgreSQL, where transactions run at the same time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from service.sessions.entry import Entry
from service.sessions.session import Session
from service.sessions.stored import StoredSessions
from service.store.store import Store
from tests.service.prepared import prepared


def entry(rate: int) -> Entry:
    return Entry("session.configure", {"rate": rate}, {})


async def deleted(stored: StoredSessions, session: Session) -> None:
    await stored.journal.void(session, 1)


async def replaced(stored: StoredSessions, session: Session) -> None:
    await stored.journal.append(session, 1, entry(2), 0)


@pytest.mark.parametrize(("then", "rates"), [(deleted, []), (replaced, [2])], ids=["deleted", "replaced"])
def test_a_deleted_entry_does_not_come_back_though_its_commit_arrives_late(
    postgres_url: str, tmp_path: Path, then: Any, rates: list[int]
) -> None:
    """As after a call whose answer from the database was lost: its transaction may end after the next one begins."""
    store = Store(None, postgres_url)
    store.open_now()
    stored = StoredSessions(store, prepared(str(tmp_path / "objects")), "api_1")
    begun, commits = threading.Event(), threading.Event()

    async def run() -> list[Any]:
        session = Session("ses_1", "prg_1", "", 60.0, {}, durability="journal")
        await stored.add(session, b"{}", "session.create", {}, entry(0), lambda living, taken: None)
        write = store.write

        async def late(work: Any) -> Any:
            def slow(connection: Connection) -> Any:
                found = work(connection)
                begun.set()
                commits.wait(30.0)
                return found

            return await write(slow)

        store.write = late  # type: ignore[method-assign]
        lost = asyncio.create_task(stored.journal.append(session, 1, entry(1), 0))
        await asyncio.to_thread(begun.wait)
        store.write = write  # type: ignore[method-assign]
        session.void = 1
        after = asyncio.create_task(then(stored, session))
        await asyncio.wait({after}, timeout=0.3)
        commits.set()
        await asyncio.gather(lost, after)
        return [each.args["rate"] for _, each in await stored.journal.entries(session, 0)]

    found = asyncio.run(run())
    store.close_now()
    assert found == rates
