"""The journals of stored sessions: the calls that changed a session after its checkpoint, by number."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, func, select, update

from service.objects import Objects, tensor_file
from service.sessions.entry import INLINE_BYTES, Entry, mark_in, packed, unpacked, with_outcome
from service.sessions.epoch import Fenced, check_epoch
from service.sessions.files import file_of
from service.sessions.session import Session
from service.store.errors import StorageFull, StorageUnavailable
from service.store.files import storage_errors
from service.store.store import Store
from service.store.tables import journal, sessions

__all__ = ["Journal", "last_entries", "write_entry"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PAGE_ROWS = 64  # read at once

APPEND = (
    "INSERT INTO journal (session, n, seq, step, entry) "
    "SELECT {0}, {0}, {0}, {0}, {0} FROM sessions WHERE id = {0} AND epoch = {0}"
)
APPENDS = {"qmark": APPEND.format("?"), "pyformat": APPEND.format("%s") + " FOR SHARE"}
"""The statement of the hot path as text, which SQLAlchemy passes on.

With PostgreSQL it locks the session's row, so that nobody takes the session over before the entry is committed.
"""


class Journal:
    """The entries of all sessions. Every method raises StorageError if the store cannot be used."""

    def __init__(self, store: Store, objects: Objects) -> None:
        self._store, self._objects = store, objects
        self._is_shared = not store.is_sqlite  # by several processes of the service

    async def append(self, session: Session, n: int, entry: Entry, step: int) -> int:
        """Store entry `n`; returns its bytes. step: of the session after the call. Raises Fenced."""
        data, file = await write_entry(self._objects, session.id, n, session.epoch, entry)
        given = (session.id, n, entry.seq, step, data, session.id, session.epoch)
        session_id, epoch, void = session.id, session.epoch, session.void

        def work(connection: Connection) -> None:
            if void is not None:
                _void(connection, session_id, epoch, void)
            if connection.exec_driver_sql(APPENDS[connection.dialect.paramstyle], given).rowcount != 1:
                raise Fenced

        try:
            await self._store.write(work)
        except Fenced:
            if file is not None:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(self._objects.delete, file)
            raise
        session.void = None
        return entry.nbytes if file is not None else len(data)

    async def has_entry(self, session: Session, n: int, mark: str) -> bool | None:
        """Whether entry `n` is that of the call with this mark.

        None if the session was saved with entry `n`, whatever that is, or deleted.
        """

        def work(connection: Connection) -> bool | None:
            saved = connection.execute(select(sessions.c.entry).where(sessions.c.id == session.id)).scalar()
            if saved is None or saved >= n:
                return None
            mine = and_(journal.c.session == session.id, journal.c.n == n)
            data = connection.execute(select(journal.c.entry).where(mine)).scalar()
            return data is not None and mark_in(data) == mark

        return await self._store.read(work)

    async def rewrite(self, session: Session, n: int, entry: Entry, step: int) -> None:
        """Give the stored entry `n` the outcome and the position of `entry`. step: as of `append`. Raises Fenced."""
        mine = and_(journal.c.session == session.id, journal.c.n == n)

        def work(connection: Connection) -> None:
            check_epoch(connection, session.id, session.epoch)
            data = connection.execute(select(journal.c.entry).where(mine)).scalar()
            if data is None:
                raise Fenced
            connection.execute(update(journal).where(mine).values(entry=with_outcome(data, entry), step=step))

        await self._store.write(work)

    async def void(self, session: Session, n: int) -> None:
        """Delete entry `n` and all later ones: their calls never took effect. Raises Fenced.

        If the store cannot be used, the next entry replaces them.
        """
        session.void = n if session.void is None else min(n, session.void)
        first = session.void
        if self._is_shared:  # an entry whose writer got an error may be committed late; a transaction would not see it
            await self._store.write(lambda connection: check_epoch(connection, session.id, session.epoch, alone=True))
        elif not await self._has_from(session, first):  # a full disk has no room to delete nothing
            session.void = None
            return
        await self._store.write(lambda connection: _void(connection, session.id, session.epoch, first))
        session.void = None

    async def _has_from(self, session: Session, first: int) -> bool:
        query = select(journal.c.n).where(journal.c.session == session.id, journal.c.n >= first).limit(1)
        return await self._store.read(lambda connection: connection.execute(query).first()) is not None

    async def creation(self, session: Session) -> Entry:
        """The call that created the session, with its tensors. Raises FileNotFoundError if these are lost."""
        query = select(journal.c.entry).where(journal.c.session == session.id, journal.c.n == 0)
        data = await self._store.read(lambda connection: connection.execute(query).scalar_one())
        with storage_errors(self._objects):
            return await asyncio.to_thread(unpacked, data, self._objects)

    async def entries(self, session: Session, after: int) -> Sequence[tuple[int, Entry]]:
        """Some entries after the number `after` with their numbers, in order; none at the end of the journal.

        Raises FileNotFoundError if the tensors of one are lost.
        """
        mine = and_(journal.c.session == session.id, journal.c.n > after)
        query = select(journal.c.n, journal.c.entry).where(mine).order_by(journal.c.n).limit(PAGE_ROWS)
        rows = await self._store.read(lambda connection: connection.execute(query).all())
        with storage_errors(self._objects):
            return await asyncio.to_thread(lambda: [(row.n, unpacked(row.entry, self._objects)) for row in rows])

    async def last_entry(self, session: Session) -> tuple[int, int]:
        """(number, greatest seq) of the entries after the checkpoint; those of the session if there are none."""
        found = await self._store.read(lambda connection: last_entries(connection, [session.id]))
        n, seq, _ = found.get(session.id, (0, 0, 0))
        return max(session.saved_entry, n), max(session.seq, seq)

    async def is_saved(self, session: Session) -> bool:
        """Whether the checkpoint contains all entries."""
        return (await self.last_entry(session))[0] == session.saved_entry


async def write_entry(objects: Objects, session: str, n: int, epoch: int, entry: Entry) -> tuple[bytes, str | None]:
    """An entry as the bytes of its row. Large tensors go to a file: its key, or None. Raises StorageError."""
    if entry.nbytes <= INLINE_BYTES:
        return packed(entry, None), None
    key = file_of(session, n, epoch)
    try:
        await asyncio.to_thread(objects.write, key, tensor_file.chunks(entry.tensors, {}))
    except OSError as error:
        kind = StorageFull if error.errno in FULL else StorageUnavailable
        raise kind("the values of the call cannot be stored", f"cannot write {key}: {error}") from error
    return packed(entry, key), key


def last_entries(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Session -> the greatest number, seq and step of its journal."""
    of_all = func.max(journal.c.n), func.max(journal.c.seq), func.max(journal.c.step)
    query = select(journal.c.session, *of_all).where(journal.c.session.in_(ids)).group_by(journal.c.session)
    return {id: (n, seq, step) for id, n, seq, step in connection.execute(query)}


def _void(connection: Connection, session: str, epoch: int, first: int) -> None:
    check_epoch(connection, session, epoch)
    connection.execute(delete(journal).where(journal.c.session == session, journal.c.n >= first))
