"""The sessions of this process: those that it holds or takes over from the store, and closed ones that it remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.ir.lru import LRU
from service.problems import HttpProblem
from service.sessions.replay import MAX_BYTES_OF_ALL, History, stored_answers
from service.sessions.session import Kind, Session
from service.sessions.stored import StoredSessions
from service.store.errors import StorageFull, StorageUnavailable
from service.store.newest import Place

__all__ = ["Gone", "HeldSessions"]

AGAIN = {"Retry-After": "5"}  # for a read that found the database full
REMEMBERED = 1000  # closed sessions to remember: error 410 gives the reason of closing

Key = tuple[str, str]


@dataclass(slots=True)
class Gone:
    """A session that was closed. reason: completes "the session ...". is_complete: it has ended, and stays closed."""

    reason: str
    program_id: str
    is_complete: bool = False


class HeldSessions:
    """The part of a registry that finds sessions.

    open:    the sessions that this process holds, be they in a worker or lost, by tenant and id.
    gone:    sessions that it has closed.
    answers: the answers of all sessions, for requests that arrive twice.
    """

    def __init__(
        self, kind: Kind, stored: StoredSessions | None, elsewhere: str, taken_over: Callable[[], None]
    ) -> None:
        """elsewhere: as of `SessionRegistry`. taken_over: called when a session has been taken over from the store."""
        self.open: dict[Key, Session] = {}
        self.gone: LRU[Gone] = LRU(REMEMBERED)
        self.answers = stored_answers(MAX_BYTES_OF_ALL)
        self._kind, self._stored, self._elsewhere, self._taken_over = kind, stored, elsewhere, taken_over
        self._loading: dict[Key, asyncio.Task[Session | None]] = {}

    def held(self, tenant: str, id: str) -> Session | None:
        """The session if this process holds it, be it in a worker or lost."""
        return self.open.get((tenant, id))

    async def find(self, tenant: str, id: str, reads: bool = False) -> Session:
        """The session, taken over from the store if need be. Raises HttpProblem 404, or 410 for one that was closed.

        reads: for a call that changes nothing. Raises HttpProblem 503 if taking the session over would undo steps: it
        has some after its checkpoint, no journal, and is in another process that lives. Also if the database has no
        space for taking it over.
        """
        session = self.open.get((tenant, id))
        if session is not None:
            return session
        if self._stored is not None and self.gone.get((tenant, id)) is None:
            row = await self._stored.peek(tenant, id) if reads and self._stored.is_shared else None
            if row is not None and row.is_held and row.session.dirty:
                detail = "another process of the service has the session, and its steps after the last checkpoint"
                advice = "send the request to that one, or again when the session is saved"
                raise HttpProblem("no-capacity", f"{detail} would be lost here; {advice}")
            try:
                session = await self._load((tenant, id))
            except StorageFull as error:
                if not reads:
                    raise
                detail = "this process does not have the session, and the database has no space for taking it over"
                advice = "the process that has the session answers"
                raise StorageUnavailable(f"{detail}; {advice}", f"{detail}: {error}", AGAIN) from error
            if session is not None:
                return session
        raise await self.missing(tenant, id)

    async def missing(self, tenant: str, id: str) -> HttpProblem:
        """The problem for a session that does not exist (any more): it names the places to go on from."""
        gone = self.gone.get((tenant, id))
        last = None if self._stored is None else await self._stored.last_checkpoint(tenant, id)
        if gone is None and last is None:
            text = f"there is no {self._kind.name} with this id"
            return HttpProblem("not-found", f"{text} {self._elsewhere}" if self._elsewhere else text)
        more: dict[str, Any] = {"program_id": gone.program_id} if gone is not None and gone.program_id else {}
        if last is not None:
            more |= {"checkpoint": last.id, "checkpoint_step": last.step, "program_id": last.program_id}
        return HttpProblem("gone", f"the {self._kind.name} {'was closed' if gone is None else gone.reason}", **more)

    async def _load(self, key: Key) -> Session | None:
        """Take the session over from the store; several requests at a time share one try."""
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._taken(key))
            task.add_done_callback(lambda _: self._loading.pop(key, None))
        return await asyncio.shield(task)

    async def _taken(self, key: Key) -> Session | None:
        assert self._stored is not None
        row = await self._stored.take(*key)
        if row is None:
            return None
        session = row.session
        session.history = History(self.answers)
        await self._stored.answers_of(session, session.history)
        self.open[key] = session
        self._taken_over()
        return session

    def why_closed(self, key: Key) -> str | None:
        """How the session ended, if this process has closed it completely: completes "the session ..."."""
        gone = self.gone.get(key)
        return gone.reason if gone is not None and gone.is_complete else None

    def is_open(self, tenant: str, id: str) -> bool:
        """Whether this process holds a session with this id that is not lost."""
        session = self.open.get((tenant, id))
        return session is not None and session.lost is None

    async def page(self, tenant: str, after: str, size: int) -> list[Session]:
        """Up to `size` sessions of the tenant from the page token `after` on, the newest first.

        The position of one that this process does not hold is that of its last use, or of some seconds before it.
        """
        held = {s.id: s for s in self.open.values() if s.tenant == tenant and s.job is None}
        found = {id: session for id, session in held.items() if not session.is_stored}
        if self._stored is not None:
            rows = [row.session for row in await self._stored.page(tenant, after, size)]
            current = {s.id: held[s.id] for s in rows if s.id in held and held[s.id].epoch == s.epoch}
            found |= current | {session.id: session for session in rows if session.id not in current}
        return Place.of(after).sorted(found.values())[:size]

    async def uses_program(self, tenant: str, program_id: str) -> list[str]:
        """The ids of sessions of a program, without lost ones."""
        held = (s for s in self.open.values() if s.tenant == tenant and s.lost is None)
        found = {s.id for s in held if s.program_id == program_id}
        if self._stored is not None:
            found.update(await self._stored.of_program(tenant, program_id))
        return sorted(found)

    async def program_text(self, session: Session) -> bytes:
        """The program of the session as JSON. Raises HttpProblem 410 if the session was closed, StorageError."""
        if not session.is_stored:
            return session.document
        assert self._stored is not None
        row = await self._stored.peek(session.tenant, session.id)
        if row is None:
            raise await self.missing(session.tenant, session.id)
        return row.document
