"""The store: one database for everything that must survive a restart. SQLite in the data directory, or PostgreSQL.

A write is a function of a connection; it runs in one transaction and is acknowledged after its commit. On SQLite one
thread does all writes: those that arrive while a commit waits for the disk share the next commit.

Each use first checks that the data directory is the one that was opened. If it is gone or replaced, uses are refused
until a directory with a store is in its place; that one is opened then. A write is acknowledged only if the directory
is still in its place afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError, NotSupportedError, ProgrammingError, SQLAlchemyError

from service.store import patience
from service.store.backing import Backing, Engines
from service.store.embedded import Embedded
from service.store.errors import SILENT, StorageError, StorageUnavailable, StoreDamaged
from service.store.patience import Patience
from service.store.server import Server

__all__ = ["HEALTH_S", "Store", "StoreClosed", "Work"]

T = TypeVar("T")
Work = Callable[[Connection], T]

READERS = 4
WRITERS = 8  # of PostgreSQL
GROUP = 256  # writes that share one commit at most
TRIES = 12  # of a transaction that PostgreSQL could not order among others
PAUSE_S = 0.002  # before the second try, doubled before each next one up to the last
LONGEST_PAUSE_S = 0.1
HEALTH_S = 1.5  # for the write that tells whether the store is healthy; probes wait for 2 s
OF_WORK = (IntegrityError, ProgrammingError, DataError, NotSupportedError)
"""Errors that a work caused, not the state of the database."""


class StoreClosed(Exception):
    """The store was used before `open` or after `close`."""


class Store:
    """The database of one service."""

    def __init__(self, directory: Path | None, url: str = "") -> None:
        """directory: the data directory; None for a temporary one. url: of PostgreSQL, in place of SQLite."""
        self._make: Callable[[], Backing] = lambda: (
            Server(url, directory, READERS, WRITERS) if url else Embedded(directory, READERS)
        )
        self.is_sqlite = not url
        self.generation = 0
        """Goes up whenever a database is opened: what was read before may be another store's."""

        self._backing: Backing | None = None
        self._engines: Engines | None = None  # None while the directory is lost
        self._gate = threading.Condition()
        self._users = 0  # of the engines
        self._readers: ThreadPoolExecutor | None = None
        self._writers: ThreadPoolExecutor | None = None
        self._pending: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """As `open_now`, in a thread."""
        await asyncio.to_thread(self.open_now)

    def open_now(self) -> None:
        """Own the data directory and open the database, create or migrate its tables. Does nothing if it is open.

        Raises StorageError with a sentence for operators.
        """
        with self._gate:
            if self._backing is not None:
                return
            backing = self._make()
            try:
                self._engines = backing.open(create=True)
            except BaseException:
                backing.release()
                raise
            self._backing = backing
            self.generation += 1
        self._readers = ThreadPoolExecutor(READERS, "store-read")
        if self.is_sqlite:
            self._thread = threading.Thread(target=self._write_in_groups, name="store-write", daemon=True)
            self._thread.start()
        else:
            self._writers = ThreadPoolExecutor(WRITERS, "store-write")

    async def close(self) -> None:
        """Finish the pending writes and close the database. Safe to repeat."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """As `close`; blocks."""
        if self._thread is not None:
            thread, self._thread = self._thread, None  # from now on, writes are refused
            self._pending.put(None)
            thread.join()
            self._refuse_pending()
        for pool in (self._readers, self._writers):
            if pool is not None:
                pool.shutdown()
        with self._gate:
            if self._engines is not None:
                self._engines.dispose()
            if self._backing is not None:
                self._backing.release()
            self._engines = self._backing = None
        self._readers = self._writers = None

    def _refuse_pending(self) -> None:
        """Answer the writes that arrived while the store closed."""
        with contextlib.suppress(queue.Empty):
            while True:
                each = self._pending.get_nowait()
                if each is not None:
                    each.error = StoreClosed("the store is not open")
                    each.answer()

    # Use

    async def read(self, work: Work[T]) -> T:
        """The result of `work`, which cannot write; in a thread, on one snapshot. Raises StorageError."""
        if self._readers is None:
            raise StoreClosed("the store is not open")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self.read_now, work, self._patience())

    def _patience(self) -> Patience | None:
        return None if self.is_sqlite else patience.begun()

    def read_now(self, work: Work[T], limit: Patience | None = None) -> T:
        """As `read`; blocks. limit: None to wait for any time."""
        with self._used(limit) as (engines, backing):
            try:
                with engines.reader.connect() as connection:
                    return work(connection)
            except OF_WORK:
                raise
            except SQLAlchemyError as error:
                raise backing.refusal(error) from error

    async def write(self, work: Work[T]) -> T:
        """The result of `work` after the commit of its transaction.

        If `work` raises, what it wrote is undone. A cancelled caller may or may not have written. `work` may run
        several times, so it must change nothing but the database. Raises StorageError; IntegrityError if `work`
        breaks a constraint.
        """
        loop = asyncio.get_running_loop()
        if self._writers is not None:
            return await loop.run_in_executor(self._writers, self._write_alone, work, self._patience())
        if self._thread is None:
            raise StoreClosed("the store is not open")
        pending = _Pending(work, loop, loop.create_future())
        self._pending.put(pending)
        return await pending.result

    def _write_alone(self, work: Work[T], limit: Patience | None) -> T:
        """One transaction, again while PostgreSQL cannot order it among others."""
        pause = PAUSE_S
        for left in reversed(range(TRIES)):
            with self._used(limit) as (engines, backing):
                try:
                    with engines.writer.begin() as connection:
                        return work(connection)
                except SQLAlchemyError as error:
                    if not (left and backing.retried(error)):
                        if isinstance(error, OF_WORK):
                            raise
                        raise backing.refusal(error) from error
            time.sleep(pause * random.random())
            pause = min(2 * pause, LONGEST_PAUSE_S)
        raise AssertionError("the loop returns or raises")

    async def health(self) -> dict[str, str | None]:
        """Check -> the reason why it fails, None if it passes. The check `store` writes to the database."""
        failed: dict[str, str | None] = {"data_directory": None, "store": None}
        try:
            async with asyncio.timeout(HEALTH_S):  # also where other writes have taken all connections
                await self.write(self._probe)
        except TimeoutError:
            failed["store"] = f"a write has not ended after {HEALTH_S:g} s"
        except StoreClosed as error:
            failed["store"] = str(error)
        except StoreDamaged as error:
            failed["store"] = error.detail
        except StorageError as error:
            failed["data_directory" if self.is_sqlite else "store"] = error.detail
        return failed

    def _probe(self, connection: Connection) -> None:
        if self._backing is not None:
            self._backing.probe(connection)

    # The database that is there now

    @contextlib.contextmanager
    def _used(self, limit: Patience | None = None) -> Iterator[tuple[Engines, Backing]]:
        """The open database; it stays open until the block ends. Raises StoreClosed, StorageError."""
        if limit is not None and time.monotonic() > limit.begins:
            raise StorageUnavailable(SILENT)
        if limit is not None:
            limit.begins = math.inf  # another try of its transaction may begin later
        engines, backing = self._enter()
        try:
            with patience.limited(limit):
                yield engines, backing
        finally:
            with self._gate:
                self._users -= 1
                if not self._users:
                    self._gate.notify_all()

    def _enter(self) -> tuple[Engines, Backing]:
        with self._gate:
            while True:
                backing = self._backing
                if backing is None:
                    raise StoreClosed("the store is not open")
                if self._engines is not None and backing.loss() is None:
                    self._users += 1
                    return self._engines, backing
                if self._users:
                    self._gate.wait()
                    continue
                if self._engines is not None:
                    # Closed before another is opened: SQLite then writes its log into the database if that is still in
                    # its place, and deletes no log of another database if not.
                    self._engines.dispose()
                    self._engines = None
                self._engines = backing.open(create=False)
                self.generation += 1

    # The thread that writes to SQLite

    def _write_in_groups(self) -> None:
        ended = False
        while not ended:
            group = [self._pending.get()]
            while len(group) < GROUP:
                try:
                    group.append(self._pending.get_nowait())
                except queue.Empty:
                    break
            ended = None in group
            works = [each for each in group if each is not None]
            self._write_group(works)
            if len(works) > 1 and any(isinstance(each.error, StorageError) for each in works):
                for each in works:  # alone: a write that the disk cannot take fails no other
                    self._write_group([each])
            for each in works:
                each.answer()

    def _write_group(self, group: list[_Pending]) -> None:
        """Run all works in one transaction, each in a savepoint of its own."""
        for each in group:
            each.error = each.value = None
        try:
            with self._used() as (engines, backing):
                try:
                    with engines.transaction() as connection:
                        _run(connection, group, backing)
                except OF_WORK:
                    raise
                except SQLAlchemyError as error:
                    raise backing.refusal(error) from error
                if (loss := backing.loss()) is not None:
                    raise StorageUnavailable(f"the data directory was lost during the call: {loss}")
        except Exception as error:
            for each in group:
                each.error = each.error or error


def _run(connection: Connection, group: list[_Pending], backing: Backing) -> None:
    """Run the works of a group. Raises the error of the only one; other errors are those of their works."""
    if len(group) == 1:
        group[0].value = group[0].work(connection)
        return
    for each in group:
        connection.exec_driver_sql("SAVEPOINT one")
        try:
            each.value = each.work(connection)
        except Exception as error:
            of_database = isinstance(error, SQLAlchemyError) and not isinstance(error, OF_WORK)
            each.error = backing.refusal(error) if of_database else error
            connection.exec_driver_sql("ROLLBACK TO one")  # fails if SQLite has undone the whole transaction
        connection.exec_driver_sql("RELEASE one")


class _Pending:
    """One write that waits for its commit."""

    __slots__ = ("_loop", "error", "result", "value", "work")

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any]) -> None:
        self.work, self._loop, self.result = work, loop, result
        self.value: Any = None
        self.error: Exception | None = None

    def answer(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if self.result.done():
            return
        if self.error is not None:
            self.result.set_exception(self.error)
        else:
            self.result.set_result(self.value)
