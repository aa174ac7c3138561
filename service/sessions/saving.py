"""Checkpoints that the service makes of sessions, and parking of idle ones."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from service.engine import EngineError
from service.http.worker_calls import Calls
from service.problems import HttpProblem
from service.sessions.copies import Copies
from service.sessions.epoch import Fenced
from service.sessions.files import checkpoint_of
from service.sessions.session import Session
from service.sessions.stored import StoredSessions
from service.sessions.turns import Turns
from service.settings import Settings
from service.store.errors import StorageError

__all__ = ["Saver"]

log = logging.getLogger("backpass.sessions")

PARKED_AT_ONCE = 16
IDLE_S = 1.0  # a session used later than that is not parked to make room


class Saver:
    """Saves and parks the stored sessions of a registry."""

    def __init__(
        self,
        settings: Settings,
        calls: Calls,
        copies: Copies,
        stored: StoredSessions | None,
        held: dict[tuple[str, str], Session],
        turns: Turns,
    ) -> None:
        self._settings, self._calls, self._copies = settings, calls, copies
        self._stored, self._held, self._turns = stored, held, turns
        self._tasks: dict[tuple[str, str], asyncio.Task[Any]] = {}

    # Checkpoints

    def changed(self, session: Session) -> None:
        """Save the session soon if it is due. Its next call waits until it is saved."""
        if self.is_due(session) and session.key not in self._tasks:
            self._start(session.key, self._save_in_turn(session))

    def is_due(self, session: Session) -> bool:
        """Whether a rebuilding would take long or lose many steps, or the journal takes the last room of the disk."""
        if session.durability == "checkpoint":
            late = time.monotonic() - session.saved_at > self._settings.checkpoint_interval
            return session.dirty and (session.step - session.saved_step >= session.checkpoint_every or late)
        return (
            session.entry - session.saved_entry >= self._settings.journal_entries
            or session.unsaved_bytes >= self._settings.journal_bytes
            or session.unsaved_s >= self._settings.journal_seconds
            or session.lacks_room
        )

    async def _save_in_turn(self, session: Session) -> None:
        async def work(session: Session, give_up: float) -> None:
            if self.is_due(session):
                try:
                    await self.save(session)
                except Fenced:  # it stays where it is: nobody asks for it here
                    await self._copies.drop(session)

        if self._held.get(session.key) is not session:
            return
        try:
            await self._turns.alone(session, self._settings.max_step_deadline, work)
        except (EngineError, HttpProblem) as error:
            log.warning("session %s is not saved: %s", session.id, error)

    async def save_between(self, session: Session, deadline: float) -> None:
        """Save the stored session between its calls, unless nothing has changed since it was saved.

        Raises HttpProblem, EngineError, StorageError.
        """

        async def work(session: Session, give_up: float) -> None:
            if session.entry != session.saved_entry or session.dirty:
                try:
                    await self.save(session)
                except Fenced:  # the process that holds it now knows its journal
                    await self._copies.drop(session)

        if session.is_stored:
            await self._turns.alone(session, deadline, work)

    async def save(self, session: Session) -> None:
        """Save the session in its turn: it can be rebuilt from here, and its journal starts anew.

        Raises EngineError, StorageError, Fenced.
        """
        assert self._stored is not None
        session.lacks_room = False
        key = checkpoint_of(session.id, session.entry, session.epoch)
        args = {"id": session.handle, "key": key, "about": {}}
        limit = self._settings.max_step_deadline
        reply = await self._calls.call("session.save", args, worker=session.worker, deadline=limit)
        await self._stored.saved(session, key, reply.result["sha256"], session.history.items())
        session.checkpoint, session.sha256 = key, reply.result["sha256"]
        session.saved_entry, session.saved_step = session.entry, session.step
        session.saved_at, session.unsaved_bytes, session.unsaved_s, session.dirty = time.monotonic(), 0, 0.0, False

    # Parking

    async def park(self, session: Session) -> bool:
        """Move the session from its worker to the store; False if a call uses it, or if it cannot be saved now."""
        if not self._can_park(session):
            return False
        async with session.turn:
            try:
                assert self._stored is not None
                if session.entry != session.saved_entry:
                    await self.save(session)
                else:
                    await self._stored.note([session])
            except Fenced:
                pass
            except (EngineError, StorageError) as error:
                log.warning("session %s is not parked: %s", session.id, error)
                return False
            await self._copies.drop(session)
            if self._held.get(session.key) is session:
                del self._held[session.key]
            session.history.clear()
        return True

    def _can_park(self, session: Session) -> bool:
        return bool(
            session.is_stored
            and session.worker
            and session.lost is None
            and session.unsure is None
            and not session.rolled_back
            and not session.waiting
            and not session.turn.locked()
        )

    async def park_longest_idle(self, other: Session | None = None) -> bool:
        """Park the session, but not `other`, that has been idle longest; False if none can be parked."""
        for session in self._longest_idle(other):
            if await self.park(session):
                return True
        return False

    def _longest_idle(self, other: Session | None = None, least: float = 0.0) -> list[Session]:
        before = time.monotonic() - least
        found = [s for s in self._held.values() if s is not other and s.used <= before and self._can_park(s)]
        return sorted(found, key=lambda session: session.used)

    def make_room_soon(self) -> None:
        """Park idle sessions in the background while more are in workers than the settings allow."""
        if self._stored is not None and self._excess() > 0 and MAKING_ROOM not in self._tasks:
            self._start(MAKING_ROOM, self._park_excess())

    def _excess(self) -> int:
        return sum(1 for s in self._held.values() if s.worker and s.is_stored) - self._settings.resident_sessions

    async def _park_excess(self) -> None:
        while (excess := self._excess()) > 0:
            idle = self._longest_idle(least=IDLE_S)[: min(excess, PARKED_AT_ONCE)]
            if not idle or not any([await self.park(session) for session in idle]):
                return

    async def sweep(self) -> None:
        """Save what is due, park what has been idle for long, and note the positions of the others."""
        assert self._stored is not None
        for session in self._longest_idle(least=self._settings.park_after):
            await self.park(session)
        await self._park_excess()
        for session in list(self._held.values()):
            if session.is_stored:
                self.changed(session)
            if self._can_forget(session):
                del self._held[session.key]
        if not self._stored.is_shared:
            recent = time.monotonic() - 2 * self._settings.park_after
            await self._stored.note([s for s in self._held.values() if s.is_stored and s.used > recent])

    async def note(self) -> None:
        """Note the positions of all sessions, and forget those that another process has taken over."""
        assert self._stored is not None
        noted = [session for session in self._held.values() if session.is_stored]
        taken = await self._stored.note(noted)
        for session in noted:
            if session.id in taken:
                await self._turns.forget(session)

    def _can_forget(self, session: Session) -> bool:
        """Whether the session was loaded and not used, or its worker ended, and the store knows all about it."""
        busy = session.worker or session.turn.locked() or session.waiting or session.rebuilding is not None
        return session.is_stored and not busy and session.lost is None and session.void is None

    async def stop(self) -> None:
        """Save all sessions that are in workers, a few at a time."""
        room = asyncio.Semaphore(PARKED_AT_ONCE)

        async def saved(session: Session) -> None:
            async with room:
                await self.park(session)

        await asyncio.gather(*(saved(session) for session in self._longest_idle()))

    def _start(self, key: tuple[str, str], work: Any) -> None:
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))


MAKING_ROOM = ("", "")
"""The key of the task that makes room."""
