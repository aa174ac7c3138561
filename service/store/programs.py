"""The store of registered programs. A program's id is the digest of its content, so the same program has one id.

The store is SQLite in WAL mode, in a directory or in memory. Every access runs in a thread, so that the event loop
never waits for the disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from core.ir.lru import LRU
from service.store.program_text import ProgramText

__all__ = ["ProgramStore", "StoreClosed", "StoreFull", "StoredProgram"]

T = TypeVar("T")

PAGE_BYTES = 2**20  # of the signatures on one page
RECENT_BYTES = 64 * 2**20  # of the programs to cache in memory

SCHEMA = """
CREATE TABLE IF NOT EXISTS programs (
    id TEXT PRIMARY KEY,
    document BLOB NOT NULL,
    signature BLOB NOT NULL,
    created REAL NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A registered program. created: seconds since 1970.

    text: its document as JSON. signature: its inputs and size as JSON.
    """

    id: str
    text: bytes
    signature: bytes
    created: float

    @property
    def program(self) -> ProgramText:
        return ProgramText(self.id, self.text)


class StoreClosed(Exception):
    """The store was used before `open` or after `close`."""


class StoreFull(Exception):
    """The store holds as many programs as the settings allow."""


class ProgramStore:
    """All registered programs."""

    def __init__(self, directory: Path | None, limit: int) -> None:
        """directory: directory of programs.sqlite, created if missing; None keeps everything in memory."""
        self._directory = directory
        self._limit = limit
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._recent: LRU[StoredProgram] = LRU(
            RECENT_BYTES, lambda stored: len(stored.text) + len(stored.signature), at_least=1
        )

    async def open(self) -> None:
        """Open the database. Raises OSError or sqlite3.Error if the directory is not usable."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        path = ":memory:"
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            path = str(self._directory / "programs.sqlite")
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # a program answered with 201 survives a power failure
        connection.execute(SCHEMA)
        self._connection = connection

    async def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    async def put(self, program: ProgramText, signature: bytes) -> tuple[StoredProgram, bool]:
        """Store a program; (stored program, whether it is new). Raises StoreFull."""
        return await self._run(self._put, program, signature)

    def _put(self, db: sqlite3.Connection, program: ProgramText, signature: bytes) -> tuple[StoredProgram, bool]:
        id = program.id
        known = self._get(db, id)
        if known is not None:
            return known, False
        if db.execute("SELECT count(*) FROM programs").fetchone()[0] >= self._limit:
            raise StoreFull
        created = time.time()
        db.execute("INSERT INTO programs VALUES (?, ?, ?, ?)", (id, program.text, signature, created))
        return StoredProgram(id, program.text, signature, created), True

    async def get(self, id: str) -> StoredProgram | None:
        """The program with this id, or None. Recently used programs come from memory."""
        found = self._recent.get(id)
        if found is None:
            found = await self._run(self._get, id)
            if found is not None:
                self._recent.put(id, found)
        return found

    def _get(self, db: sqlite3.Connection, id: str) -> StoredProgram | None:
        row = db.execute("SELECT id, document, signature, created FROM programs WHERE id = ?", (id,)).fetchone()
        return None if row is None else StoredProgram(*row)

    async def page(self, after: str, size: int) -> tuple[list[StoredProgram], bool]:
        """(up to `size` programs with ids greater than `after`, in the order of ids and without their documents;
        whether there are more).

        A page ends early when its signatures exceed PAGE_BYTES.
        """
        return await self._run(self._page, after, size)

    def _page(self, db: sqlite3.Connection, after: str, size: int) -> tuple[list[StoredProgram], bool]:
        rows = db.execute(
            "SELECT id, x'', signature, created FROM programs WHERE id > ? ORDER BY id LIMIT ?", (after, size + 1)
        )
        page: list[StoredProgram] = []
        room = PAGE_BYTES
        for row in rows:
            if len(page) == size or room < 0:
                return page, True
            page.append(StoredProgram(*row))
            room -= len(page[-1].signature)
        return page, False

    async def delete(self, id: str) -> bool:
        """Delete a program; whether it existed."""
        found = await self._run(lambda db: db.execute("DELETE FROM programs WHERE id = ?", (id,)).rowcount > 0)
        self._recent.pop(id)
        return found

    async def writable(self) -> bool:
        """Whether the database is open and writable, for the readiness check."""
        try:
            await self._run(lambda db: db.execute("PRAGMA user_version = 1"))
        except (sqlite3.Error, StoreClosed):
            return False
        return True

    async def _run(self, action: Callable[..., T], *args: Any) -> T:
        def locked() -> T:
            with self._lock:
                if self._connection is None:
                    raise StoreClosed("the store of programs is not open")
                return action(self._connection, *args)

        return await asyncio.to_thread(locked)
