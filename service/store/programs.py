"""The store of registered programs. A program's id is the digest of its content, so the same program has one id.

The store is SQLite, in a directory that this process owns or in memory. Every access runs in a thread, so that the
event loop never waits for the disk.
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

import orjson

from core.ir.lru import LRU
from service.store.database import VERSION, connect, create_database, damaged, define, is_damage, open_database
from service.store.directory import DataDirectory, refusal
from service.store.errors import StorageError, StorageFull, StorageUnavailable, StoreDamaged
from service.store.program_text import ProgramText, program_id

__all__ = ["FILE", "ProgramStore", "StoreClosed", "StoredProgram", "TooManyPrograms"]

T = TypeVar("T")

FILE = "programs.sqlite"
JOURNALS = (f"{FILE}-journal", f"{FILE}-wal")
PAGE_BYTES = 2**20  # of the signatures on one page
RECENT_BYTES = 64 * 2**20  # of the programs to cache in memory
CHECKED_BYTES = 2**20  # of a program whose digest is checked when it is read: parsing a larger one delays requests


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


class TooManyPrograms(Exception):
    """The store holds as many programs as the settings allow."""


def _has_id(text: bytes, id: str) -> bool:
    """Whether the program in `text` has this id."""
    try:
        return program_id(orjson.loads(text)) == id
    except orjson.JSONDecodeError:
        return False


class ProgramStore:
    """All registered programs.

    Each access first checks that the directory is the one that was opened. If it is gone or replaced, accesses are
    refused until a directory with a store is in its place; that one is opened then. A write is acknowledged only if the
    directory is still in its place afterwards.
    """

    def __init__(self, directory: Path | None, limit: int) -> None:
        """directory: directory of the file, created if missing; None keeps everything in memory."""
        self._directory = None if directory is None else DataDirectory(directory)
        self._limit = limit
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._recent = self._empty_cache()

    @staticmethod
    def _empty_cache() -> LRU[StoredProgram]:
        return LRU(RECENT_BYTES, lambda stored: len(stored.text) + len(stored.signature), at_least=1)

    async def open(self) -> None:
        """As `open_now`, in a thread."""
        await asyncio.to_thread(self.open_now)

    def open_now(self) -> None:
        """Own the directory and open the store, a new one if there is none. Does nothing if it is open.

        Raises StorageError with a sentence for operators.
        """
        with self._lock:
            if self._connection is not None:
                return
            if self._directory is None:
                self._connection = connect(":memory:")
                define(self._connection)
                return
            try:
                self._connection = self._opened(self._directory, create=True)
            except StorageError:
                self._directory.release()
                raise

    def _opened(self, directory: DataDirectory, create: bool) -> sqlite3.Connection:
        """The database of the directory, which this process owns from now on. Raises StorageError.

        create: make a new store if there is none.
        """
        file = directory.path / FILE
        if not create and not file.exists():
            raise StorageUnavailable(
                "the data directory is gone or has no store of programs",
                f"{file} is gone; restart the service to begin with an empty store",
            )
        directory.claim()
        try:
            if not file.exists():
                if lost := [name for name in JOURNALS if (directory.path / name).exists()]:
                    raise damaged(file, f"is missing, but {lost[0]} is there")
                create_database(file)
            connection = open_database(file)
            directory.watch(FILE)
        except (OSError, sqlite3.Error) as error:
            raise self._refusal(error) from error
        return connection

    async def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._directory is not None:
                self._directory.release()

    async def put(self, program: ProgramText, signature: bytes) -> tuple[StoredProgram, bool]:
        """Store a program; (stored program, whether it is new). Raises TooManyPrograms, StorageError."""
        return await self._run(self._put, program, signature)

    def _put(self, db: sqlite3.Connection, program: ProgramText, signature: bytes) -> tuple[StoredProgram, bool]:
        id = program.id
        known = self._get(db, id)
        if known is not None:
            return known, False
        if db.execute("SELECT count(*) FROM programs").fetchone()[0] >= self._limit:
            raise TooManyPrograms
        created = time.time()
        db.execute("INSERT INTO programs VALUES (?, ?, ?, ?)", (id, program.text, signature, created))
        return StoredProgram(id, program.text, signature, created), True

    async def get(self, id: str) -> StoredProgram | None:
        """The program with this id, or None. Recently used programs come from memory. Raises StorageError."""
        found = self._recent.get(id)
        if found is None:
            found = await self._run(self._get, id)
            if found is not None:
                self._recent.put(id, found)
        return found

    def _get(self, db: sqlite3.Connection, id: str) -> StoredProgram | None:
        row = db.execute("SELECT id, document, signature, created FROM programs WHERE id = ?", (id,)).fetchone()
        if row is None:
            return None
        found = StoredProgram(*row)
        if len(found.text) <= CHECKED_BYTES and not _has_id(found.text, id):
            raise StorageUnavailable("the stored program is damaged: its content does not have its id")
        return found

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
        """Delete a program; whether it existed. Raises StorageError."""
        found = await self._run(lambda db: db.execute("DELETE FROM programs WHERE id = ?", (id,)).rowcount > 0)
        self._recent.pop(id)
        return found

    async def health(self) -> dict[str, str | None]:
        """Check -> the reason why it fails, None if it passes. The check `store` writes to the database."""
        failed: dict[str, str | None] = {"data_directory": None, "store": None}
        try:
            await self._run(lambda db: db.execute(f"PRAGMA user_version = {VERSION}"))
        except StoreClosed as error:
            failed["store"] = str(error)
        except StoreDamaged as error:
            failed["store"] = error.detail
        except StorageError as error:
            failed["data_directory"] = error.detail
        return failed

    async def _run(self, action: Callable[..., T], *args: Any) -> T:
        def locked() -> T:
            with self._lock:
                db = self._present()
                try:
                    result = action(db, *args)
                except sqlite3.Error as error:
                    raise self._refusal(error) from error
                if self._directory is not None and (loss := self._directory.loss()) is not None:
                    raise StorageUnavailable(f"the data directory was lost during the call: {loss}")
                return result

        return await asyncio.to_thread(locked)

    def _present(self) -> sqlite3.Connection:
        """The connection to the store that is in the directory now. Raises StoreClosed, StorageError."""
        if self._connection is None:
            raise StoreClosed("the store of programs is not open")
        if self._directory is None or self._directory.loss() is None:
            return self._connection
        before = self._connection
        self._connection = self._opened(self._directory, create=False)
        before.close()
        self._recent = self._empty_cache()
        return self._connection

    def _refusal(self, error: OSError | sqlite3.Error) -> StorageError:
        """The refusal of an access that failed with `error`. SQLite does not report the cause of a failed write, so a
        write to another file of the directory asks for it."""
        directory = self._directory
        if isinstance(error, OSError):
            assert directory is not None
            return refusal(error, directory.path)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            return StorageFull("no space is left in the data directory")
        if is_damage(error):
            return StoreDamaged(f"the store of programs is damaged: {error}")
        if directory is not None:
            file = directory.path / FILE
            cause = directory.trial(file.stat().st_size if file.is_file() else 0)
            if cause is not None:
                return refusal(cause, directory.path)
        return StorageUnavailable(f"the store of programs cannot be used: {error}")
