"""Stored sessions: their rows, checkpoints and answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from sqlalchemy import Connection, delete, func, insert, or_, select, update

from service.http.tensor_payloads import Answer
from service.objects import Objects
from service.problems import HttpProblem
from service.sessions.entry import Entry, position_after
from service.sessions.epoch import Fenced, at_epoch
from service.sessions.files import checkpoints_of, folder_of, session_of, stale
from service.sessions.journal import Journal, last_entries, write_entry
from service.sessions.replay import Answered, History
from service.sessions.session import Session
from service.store.errors import StorageError, StorageFull
from service.store.newest import Place
from service.store.store import Store
from service.store.tables import answers, checkpoints, journal, sessions

__all__ = ["Row", "StoredSessions"]

log = logging.getLogger("backpass.sessions")

MOST_IDS = 500  # in one query
OWNED_S = 15.0  # time for which a process tells the others that it holds a session

_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()


@dataclass(frozen=True, slots=True)
class Row:
    """A stored session: its place in the store, and all that a worker needs to create it.

    session:  the session as the store knows it, in no worker.
    document: the program as JSON text. op, args: of the call that creates the session without its checkpoint.
    is_held:  whether another process holds the session now.
    """

    session: Session
    document: bytes
    op: str
    args: dict[str, Any]
    is_held: bool


class StoredSessions:
    """The rows of all stored sessions. Every method raises StorageError if the store cannot be used."""

    def __init__(self, store: Store, objects: Objects, owner: str) -> None:
        """owner: id of this process of the service."""
        self._store, self.objects, self._owner = store, objects, owner
        self.journal = Journal(store, objects)

    @property
    def is_shared(self) -> bool:
        """Whether other processes of the service may use the same store."""
        return not self._store.is_sqlite

    # Sessions

    async def add(
        self,
        session: Session,
        document: bytes,
        op: str,
        args: dict[str, Any],
        first: Entry,
        check: Callable[[int, int], None],
    ) -> None:
        """Store a new session. first: the call that created it, with its tensors.

        check: raises HttpProblem to refuse it, when given the number of the tenant's others and the sum of their bytes.
        """
        entry, file = await write_entry(self.objects, session.id, 0, 1, first)
        rows = {"session": session.id, "n": 0, "seq": 0, "step": session.step, "entry": entry}
        values = {
            "id": session.id,
            "tenant": session.tenant,
            "program_id": session.program_id,
            "document": document,
            "settings": _encoder.encode([op, args]),
            "durability": session.durability,
            "checkpoint_every": session.checkpoint_every,
            "dirty": 0,
            "epoch": 1,
            "owner": self._owner,
            "owner_until": time.time() + OWNED_S,
            "entry": 0,
            "saved_step": session.step,
            "checkpoint": None,
            "bytes": session.about.get("bytes", 0),
            "lease_s": session.lease_s,
            "job": session.job,
            "created": session.created,
            **_position(session),
        }

        def work(connection: Connection) -> None:
            connection.execute(insert(sessions).values(values))  # first: another process may have stored it
            connection.execute(insert(journal).values(rows))
            living, taken = _usage(connection, session.tenant)
            check(living - 1, taken - values["bytes"])

        try:
            await self._store.write(work)
        except HttpProblem as error:
            if file is not None and not isinstance(error, StorageError):  # after such an error it may be stored
                with contextlib.suppress(OSError):  # `Orphans` deletes it
                    await asyncio.to_thread(self.objects.delete, file)
            raise
        session.epoch = 1

    async def take(self, tenant: str, id: str) -> Row | None:
        """Take the session over from whoever holds it; None if there is none.

        On a full disk its epoch stays, unless another process could have it: it can be read, which needs no write.
        """

        def work(connection: Connection) -> Any:
            found = connection.execute(select(sessions).where(sessions.c.id == id, sessions.c.tenant == tenant)).first()
            if found is None:
                return None
            taken = update(sessions).where(at_epoch(id, found.epoch))
            values = {"epoch": found.epoch + 1, "owner": self._owner, "owner_until": time.time() + OWNED_S}
            if connection.execute(taken.values(values)).rowcount != 1:
                raise Fenced
            return found

        for _ in range(8):
            try:
                found = await self._store.write(work)
            except Fenced:
                continue  # another process was faster: take it over from that one
            except StorageFull:
                if self.is_shared:
                    raise
                return await self.peek(tenant, id)
            return None if found is None else self._row(found, found.epoch + 1)
        raise Fenced

    async def peek(self, tenant: str, id: str) -> Row | None:
        """The session as it is stored, without taking it over."""
        query = select(sessions).where(sessions.c.id == id, sessions.c.tenant == tenant)
        found = await self._store.read(lambda connection: connection.execute(query).first())
        return None if found is None else self._row(found, found.epoch)

    async def seen(self, tenant: str, id: str) -> Row | None:
        """As `peek`, with the position after the last call of the journal.

        All in one transaction: the process that holds the session may save it, which empties the journal.
        """
        query = select(sessions).where(sessions.c.id == id, sessions.c.tenant == tenant)
        last = select(journal).where(journal.c.session == id).order_by(journal.c.n.desc()).limit(1)

        def work(connection: Connection) -> tuple[Any, Any, int]:
            found = connection.execute(query).first()
            if found is None:
                return None, None, 0
            _, seq, _ = last_entries(connection, [id]).get(id, (0, 0, 0))
            return found, connection.execute(last).first(), seq

        found, entry, seq = await self._store.read(work)
        if found is None:
            return None
        row = self._row(found, found.epoch)
        session = row.session
        session.seq = max(session.seq, seq)
        if entry is not None and entry.n > session.entry:
            session.step = entry.step
            if (after := position_after(entry.entry)) is not None:
                session.version, session.accumulated = after
        return row

    async def page(self, tenant: str, after: str, size: int) -> list[Row]:
        """Up to `size` sessions from the page token `after` on, the newest first, without those of jobs.

        They have the seq and the step of their journals.
        """
        mine = select(sessions).where(sessions.c.tenant == tenant, sessions.c.job.is_(None))
        query = Place.of(after).query(mine, sessions).limit(size)

        def work(connection: Connection) -> tuple[Sequence[Any], dict[str, tuple[int, int, int]]]:
            rows = connection.execute(query).all()
            return rows, last_entries(connection, [row.id for row in rows])

        rows, last = await self._store.read(work)
        found = [self._row(row, row.epoch) for row in rows]
        for session in [row.session for row in found]:
            _, seq, step = last.get(session.id, (0, 0, 0))
            session.seq, session.step = max(session.seq, seq), max(session.step, step)
        return found

    def _row(self, row: Any, epoch: int) -> Row:
        op, args = _decoder.decode(row.settings)
        session = Session(
            row.id,
            row.program_id,
            "",
            row.lease_s,
            orjson.loads(row.about),
            row.created,
            time.monotonic() - max(0.0, time.time() - row.used),
            version=row.version,
            step=row.step,
            seq=row.seq,
            accumulated=row.accumulated,
            tenant=row.tenant,
            handle=row.id,
            job=row.job,
            durability=row.durability,
            epoch=epoch,
            entry=max(row.entry, row.known),
            saved_entry=row.entry,
            saved_step=row.saved_step,
            checkpoint=row.checkpoint,
            sha256=row.sha256,
            checkpoint_every=row.checkpoint_every,
            dirty=bool(row.dirty),
        )
        held = self.is_shared and row.owner != self._owner and (row.owner_until or 0.0) > time.time()
        return Row(session, row.document, op, args, held)

    async def usage(self, tenant: str, without: Collection[str] = ()) -> tuple[int, int]:
        """(number of sessions of the tenant, sum of their bytes). without: ids of sessions that do not count."""
        return await self._store.read(lambda connection: _usage(connection, tenant, without))

    async def last_checkpoint(self, tenant: str, id: str) -> Any:
        """id, program_id and step of the newest checkpoint that a client made of a session; None without one."""
        found = select(checkpoints.c.id, checkpoints.c.program_id, checkpoints.c.step)
        found = found.where(checkpoints.c.tenant == tenant, checkpoints.c.session == id)
        found = found.order_by(checkpoints.c.created.desc()).limit(1)
        return await self._store.read(lambda connection: connection.execute(found).first())

    async def count(self) -> int:
        """The number of all sessions."""
        query = select(func.count()).select_from(sessions)
        return int(await self._store.read(lambda connection: connection.execute(query).scalar_one()))

    async def of_program(self, tenant: str, program_id: str) -> list[str]:
        """Some ids of sessions of a program."""
        query = select(sessions.c.id).where(sessions.c.tenant == tenant, sessions.c.program_id == program_id).limit(200)
        return list(await self._store.read(lambda connection: connection.execute(query).scalars().all()))

    async def unused_since(
        self, now: float, limit: int, suspended: Collection[str] = ()
    ) -> list[tuple[str, str, float]]:
        """(tenant, id, lease) of sessions whose lease has passed at the time `now`, in seconds since 1970.

        suspended: tenants whose sessions stay.

        Those that another living process holds are left to it: it knows whether a long call uses them.
        """
        free = or_(sessions.c.owner == self._owner, sessions.c.owner_until < now, sessions.c.owner_until.is_(None))
        query = select(sessions.c.tenant, sessions.c.id, sessions.c.lease_s)
        query = query.where(sessions.c.used + sessions.c.lease_s < now, sessions.c.tenant.not_in(suspended)).limit(
            limit
        )
        if self.is_shared:
            query = query.where(free)
        rows = await self._store.read(lambda connection: connection.execute(query).all())
        return [(row.tenant, row.id, row.lease_s) for row in rows]

    async def remove(self, session: Session) -> None:
        """Delete the session and its files. Raises Fenced."""

        def work(connection: Connection) -> None:
            mine = delete(sessions).where(at_epoch(session.id, session.epoch))
            if connection.execute(mine).rowcount != 1:
                raise Fenced
            connection.execute(delete(journal).where(journal.c.session == session.id))
            connection.execute(delete(answers).where(answers.c.session == session.id))

        await self._store.write(work)
        await asyncio.to_thread(self._delete_files, session.id, session.epoch, None, None)

    async def delete_files(self, id: str) -> None:
        """Delete all files of a session. Raises OSError."""

        def work() -> None:
            for folder in (folder_of(id), checkpoints_of(id)):
                for key in list(self.objects.keys(folder)):
                    self.objects.delete(key)

        await asyncio.to_thread(work)

    async def note(self, held: Iterable[Session]) -> set[str]:
        """Store the positions of sessions, the time of their last use, and that this process holds them.

        Returns the ids of those that another process has taken over or deleted.
        """
        now = time.time()
        rows = [(s.id, s.epoch, _position(s, now)) for s in held]

        def work(connection: Connection) -> set[str]:
            lost = set()
            for id, epoch, values in rows:
                mine = update(sessions).where(at_epoch(id, epoch))
                if not connection.execute(mine.values(**values, owner_until=now + OWNED_S)).rowcount:
                    lost.add(id)
            return lost

        return await self._store.write(work) if rows else set()

    async def owns(self, session: Session) -> bool:
        """Whether this process still holds the session."""
        query = select(sessions.c.epoch).where(sessions.c.id == session.id)
        return await self._store.read(lambda c: c.execute(query).scalar()) == session.epoch

    async def set_dirty(self, session: Session, dirty: bool) -> None:
        """Store whether the session has changes that its checkpoint lacks. Raises Fenced."""
        await self._change(session, {"dirty": int(dirty)})
        session.dirty = dirty

    async def told(self, session: Session) -> None:
        """A client knows that the session has gone back to its checkpoint: its next versions are of another line.
        Raises Fenced."""
        await self._change(session, {"dirty": 0, "epoch": session.epoch + 1})
        session.dirty, session.epoch = False, session.epoch + 1

    async def _change(self, session: Session, values: dict[str, Any]) -> None:
        mine = update(sessions).where(at_epoch(session.id, session.epoch)).values(values)

        def work(connection: Connection) -> None:
            if connection.execute(mine).rowcount != 1:
                raise Fenced

        await self._store.write(work)

    # Files

    async def named(self, keys: set[str]) -> set[str]:
        """The files of journals and checkpoints among `keys` whose sessions exist."""
        ids = sorted({session_of(key) for key in keys})

        def work(connection: Connection) -> set[str]:
            found: set[str] = set()
            for begin in range(0, len(ids), MOST_IDS):
                query = select(sessions.c.id).where(sessions.c.id.in_(ids[begin : begin + MOST_IDS]))
                found.update(connection.execute(query).scalars())
            return found

        known = await self._store.read(work)
        return {key for key in keys if session_of(key) in known}

    # Checkpoints

    async def saved(self, session: Session, key: str, sha256: str, answered: Sequence[tuple[int, Answered]]) -> None:
        """Make the file `key` the session's checkpoint: it contains all entries so far. Raises Fenced.

        answered: the last calls by number, with the answers that are kept for repeated requests.
        """
        values = {
            **_position(session),
            "entry": session.entry,
            "saved_step": session.step,
            "checkpoint": key,
            "sha256": sha256,
            "dirty": 0,
            "owner_until": time.time() + OWNED_S,
        }
        rows = [
            {"session": session.id, "seq": seq, "digest": each.digest, "answer": _packed_answer(each.answer)}
            for seq, each in answered
        ]

        def work(connection: Connection) -> None:
            mine = update(sessions).where(at_epoch(session.id, session.epoch))
            if connection.execute(mine.values(values)).rowcount != 1:
                raise Fenced
            connection.execute(delete(journal).where(journal.c.session == session.id, journal.c.n <= values["entry"]))
            connection.execute(delete(answers).where(answers.c.session == session.id))
            if rows:
                connection.execute(insert(answers), rows)

        await self._store.write(work)
        await asyncio.to_thread(self._delete_files, session.id, session.epoch, values["entry"], key)

    async def answers_of(self, session: Session, history: History) -> None:
        """Put the answers that were stored with the checkpoint into `history`."""
        query = select(answers).where(answers.c.session == session.id).order_by(answers.c.seq)
        for row in await self._store.read(lambda connection: connection.execute(query).all()):
            history.add(row.seq, row.digest, None if row.answer is None else _answer(row.answer))

    def _delete_files(self, session: str, epoch: int, until: int | None, checkpoint: str | None) -> None:
        """Delete the files of entries up to `until` (None: all), and all checkpoints but `checkpoint`.

        Those that cannot be deleted now are left to the next call, or to `Orphans` when the session has ended.
        """
        try:
            for key in stale(self.objects.keys(folder_of(session)), until, epoch):
                self.objects.delete(key)
            for key in stale(self.objects.keys(checkpoints_of(session)), None, epoch):
                if key != checkpoint:
                    self.objects.delete(key)
        except OSError as error:
            log.warning("old files of session %s are not deleted yet: %s", session, error)


def _usage(connection: Connection, tenant: str, without: Collection[str] = ()) -> tuple[int, int]:
    query = select(func.count(), func.coalesce(func.sum(sessions.c.bytes), 0)).where(sessions.c.tenant == tenant)
    if without:
        query = query.where(sessions.c.id.not_in(without))
    count, size = connection.execute(query).one()
    return int(count), int(size)


def _position(session: Session, now: float | None = None) -> dict[str, Any]:
    """The columns of the position, and of the time of the last use."""
    idle = time.monotonic() - session.used
    return {
        "about": orjson.dumps(session.about).decode(),
        "seq": session.seq,
        "step": session.step,
        "known": session.entry,
        "version": session.version,
        "accumulated": session.accumulated,
        "used": (time.time() if now is None else now) - idle,
    }


def _packed_answer(answer: Answer | None) -> bytes | None:
    if answer is None:
        return None
    return _encoder.encode([b"".join(answer.parts), answer.media_type, dict(answer.headers)])


def _answer(data: bytes) -> Answer:
    content, media_type, headers = _decoder.decode(data)
    return Answer((content,), media_type, headers)
