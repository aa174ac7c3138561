"""The registry of open sessions: the worker of each session, its lease, and its place in the store.

The arrays are in the workers. A stored session outlives them: it is found in the store when a request names it, and
rebuilt in a worker before its next call. An idle one is parked: its worker and this process forget it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import numpy as np
from sqlalchemy.exc import IntegrityError

from service.engine import Engine, EngineError, Reply, WorkerLost
from service.engine.protocol import NO_TENSORS
from service.http.entity_tags import Accepts, any_tag
from service.http.worker_calls import Calls
from service.ids import REPEATABLE, new_id
from service.objects import Objects
from service.observability.metrics import Metrics
from service.problems import HttpProblem
from service.sessions.changes import Changes, Write
from service.sessions.copies import DELETE_S, Copies
from service.sessions.creation import Creation, Creator, Terms
from service.sessions.epoch import Fenced
from service.sessions.held import Gone, HeldSessions
from service.sessions.places import Place, Places, Quota
from service.sessions.recovery import Rebuilder
from service.sessions.replay import History
from service.sessions.saving import Saver
from service.sessions.session import SESSIONS, Kind, Session
from service.sessions.stored import StoredSessions
from service.sessions.turns import Turns
from service.settings import Settings
from service.store.errors import StorageError
from service.store.store import Store

__all__ = ["SessionRegistry", "Write"]

log = logging.getLogger("backpass.sessions")

SWEEP_S = 5.0
MANY = 1000  # expired sessions that one sweep deletes

Tensors = Mapping[str, np.ndarray]
Key = tuple[str, str]


class SessionRegistry:
    """All sessions of one service, or all of its tapes: here "session" means an object of the registry's `Kind`."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        metrics: Metrics | None = None,
        kind: Kind = SESSIONS,
        store: Store | None = None,
        objects: Objects | None = None,
        owner: str = "",
        elsewhere: str = "",
    ) -> None:
        """store, objects: the places of stored sessions; None if all sessions end with their workers.

        owner: id of this process of the service, among those that share the store.
        elsewhere: completes "there is no session with this id" where another process may have one.
        """
        self._kind, self._settings, self._metrics = kind, settings, metrics
        self._calls = Calls(engine, metrics)
        self._started = time.monotonic()
        self.quota: Callable[[str], Quota] = lambda tenant: settings
        """The limits of a tenant."""
        self.closed: Callable[[Key], None] = lambda key: None
        """Called when a session has been closed."""
        self.stepped: Callable[[str, int], None] = lambda tenant, steps: None
        """Called with the tenant and the steps of each call that has taken effect, once for each call."""
        self.suspended: Callable[[], Collection[str]] = lambda: ()
        """The suspended tenants: the leases of their stored sessions do not end."""
        self._closing: set[asyncio.Task[None]] = set()
        self._stored: StoredSessions | None = None
        rebuilder = None
        if store is not None and objects is not None:
            self._stored = StoredSessions(store, objects, owner or new_id("api_"))
        self._held = held = HeldSessions(kind, self._stored, elsewhere, self._taken_over)
        self.held, self.find, self.page, self.program_text = held.held, held.find, held.page, held.program_text
        self.why_closed, self.is_open, self.uses_program = held.why_closed, held.is_open, held.uses_program
        self._copies = Copies(kind, self._calls, self._stored)
        if self._stored is not None:
            rebuilder = Rebuilder(self._calls, self._copies, self._stored, settings, self._make_room)
        changes = Changes(
            kind,
            settings,
            metrics,
            self._copies,
            self._stored,
            rebuilder,
            self._changed,
            lambda tenant, steps: self.stepped(tenant, steps),
        )
        self._turns = Turns(kind, settings, self._held.open, self.find, self._copies, changes, self._stored, rebuilder)
        self._places = Places(
            kind,
            getattr(settings, kind.plural),
            lambda tenant: self.quota(tenant),
            self._held.open.values,
            self._stored,
        )
        self._saver = Saver(settings, self._calls, self._copies, self._stored, self._held.open, self._turns)
        self._creator = Creator(self._calls, self._copies, self._places, self._saver, self._stored, self._make_room)
        self.read, self.write, self.change, self.alone = (
            self._turns.read,
            self._turns.write,
            self._turns.change,
            self._turns.alone,
        )
        engine.on_worker_lost(self._worker_lost)

    def _changed(self, session: Session) -> None:
        self._saver.changed(session)

    def _taken_over(self) -> None:
        self._count()
        self._saver.make_room_soon()

    async def save(self, session: Session, deadline: float) -> None:
        """Save the session between its calls: it can then be rebuilt without the calls before, and without their data.

        Raises HttpProblem, EngineError, StorageError.
        """
        await self._saver.save_between(session, deadline)

    async def seen(self, tenant: str, id: str, deadline: float) -> Session:
        """The session, to look at. Raises as `find` does.

        Its position is exact, unless another process holds it or it is being rebuilt: then it is that of the journal,
        which may contain a call that is not answered yet.
        """
        session = self._held.open.get((tenant, id))
        if session is not None and not await self._copies.is_current(session):
            await self._turns.forget(session)
            if self._stored is None or await self._stored.peek(tenant, id) is None:
                raise await self._held.missing(tenant, id)
            session = None
        if session is None and self._stored is not None and self._held.gone.get((tenant, id)) is None:
            row = await self._stored.seen(tenant, id)
            if row is not None and (row.is_held or await self._stored.journal.is_saved(row.session)):
                return row.session
        session = await self.find(tenant, id)
        if not session.is_stored or session.is_settled or session.lost is not None:
            return session
        if session.turn.locked():
            assert self._stored is not None
            row = await self._stored.seen(tenant, id)
            if row is None:
                raise await self._held.missing(tenant, id)
            return row.session

        async def nothing(session: Session, give_up: float) -> Session:
            return session

        return await self._turns.alone(session, deadline, nothing)

    async def is_current(self, session: Session) -> bool:
        """Whether no other process of the service has taken over the session, which this one has found. Raises
        StorageError."""
        return await self._copies.is_current(session)

    async def named(self, keys: set[str]) -> set[str]:
        """The files among `keys` whose sessions exist. Raises StorageError."""
        assert self._stored is not None
        return await self._stored.named(keys)

    async def delete_files(self, id: str) -> None:
        """Delete all files of a stored session whose tenant is erased. Raises OSError."""
        assert self._stored is not None
        await self._stored.delete_files(id)

    async def usage(self, tenant: str) -> tuple[int, int]:
        """(number of open sessions of a tenant, bytes of the stored ones). Raises StorageError."""
        return await self._places.used(tenant)

    # Opening and closing

    async def open(
        self,
        creation: Creation,
        terms: Terms,
        *,
        tenant: str = "local",
        deadline: float,
        id: str | None = None,
        left: Callable[[Session], Coroutine[Any, Any, None]] | None = None,
    ) -> Session:
        """Open a session in any idle worker.

        id: of a closed or lost session that is not stored, which the new one replaces; by default a fresh one.
        left: called with the session if it is open, but the caller was cancelled and does not get it.
        Raises HttpProblem 429 at the limit of open sessions, StorageError, or EngineError.
        """
        handle = new_id(self._kind.prefix) if id is None else f"{tenant}/{id}"
        key = tenant, id or handle
        place = await self._place(key)

        async def opened() -> Session:
            try:
                if id is None and REPEATABLE.get() is not None:  # an earlier execution of the request may have done it
                    with contextlib.suppress(HttpProblem):
                        return await self.find(*key)
                reply = await self._creator.create(creation, handle, deadline)
                session = self._kind.entry(
                    key[1],
                    creation.program[0] if creation.program else "",
                    reply.worker,
                    terms.lease_s,
                    {**terms.about, "bytes": reply.result["bytes"]},
                    tenant=tenant,
                    handle=handle,
                    job=terms.job,
                    durability="none" if self._stored is None else terms.durability,
                    checkpoint_every=terms.checkpoint_every,
                )
                await self._enter(session, creation, reply)
                return session
            finally:
                self._places.leave(place)
                self._count()

        try:
            session = await self._turns.handed_over(opened(), left)
        except IntegrityError:  # another process executes the same request, as it counted this one as ended
            return await self.find(*key)
        self._saver.make_room_soon()
        return session

    async def _place(self, key: Key) -> Place:
        """A place for another session, after expired ones are closed if there is none."""
        try:
            return await self._places.take(*key)
        except HttpProblem:
            await self._close_expired()
            return await self._places.take(*key)

    async def _enter(self, session: Session, creation: Creation, reply: Reply) -> None:
        """Enter a session that a worker has just created, into the store too if it outlives the worker."""
        if "version" in reply.result:
            session.adopt(reply.result)
        session.saved_step = session.step
        session.history = History(self._held.answers)
        if session.is_stored:
            await self._creator.store(session, creation)
        elif creation.program is not None:
            session.document = creation.program[1]
        self._held.open[session.key] = session
        self._held.gone.pop(session.key)
        if all(worker.id != reply.worker for worker in self._calls.engine.workers()):
            self._copies.lose(session, "it ended")  # after its answer: `_worker_lost` did not know the session

    async def close(self, tenant: str, id: str, reason: str = "was deleted", accepts: Accepts = any_tag) -> None:
        """Close the session; does nothing if it is closed already.

        accepts: the ETags that the client accepts of the session, after its running call.
        Raises HttpProblem 404 if it never existed, 412 for another ETag.
        """
        if self._held.gone.get((tenant, id)) is not None:
            return
        session = await self.find(tenant, id)
        await self._turns.kept_running(self._close(session, reason, accepts))

    async def close_all(self, tenant: str) -> None:
        """Close the sessions of a deleted tenant that this process holds; those that run a call, after it."""
        for session in [each for each in self._held.open.values() if each.tenant == tenant]:
            closing = asyncio.create_task(self._close(session, "was deleted with its tenant"))
            self._closing.add(closing)
            closing.add_done_callback(self._closed)
        if self._closing:
            await asyncio.wait(self._closing, timeout=DELETE_S)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:  # it is open still, or was erased
            log.info("a session of a deleted tenant was not closed: %s", error)

    async def _close(self, session: Session, reason: str, accepts: Accepts = any_tag) -> None:
        if self._held.open.pop(session.key, None) is None:
            return
        gone = Gone(reason, session.program_id)
        self._held.gone.put(session.key, gone)
        self._count()
        async with session.turn:  # waits for the running step
            if session.rebuilding is not None:
                session.rebuilding.cancel()
                await asyncio.wait({session.rebuilding}, timeout=DELETE_S)  # it deletes the copy in its worker
            try:
                await self._copies.check_accepted(session, accepts)
                if session.is_stored:
                    assert self._stored is not None
                    await self._stored.remove(session)
                if session.lost is None and session.worker:
                    await self._delete_in_worker(session)
            except Fenced:  # another process holds it now
                self._held.gone.pop(session.key)
                await self._copies.drop(session)
                if reason == EXPIRED:
                    return
                again = await self.find(session.tenant, session.id)
                await self._close(again, reason, accepts)
                return
            except (EngineError, StorageError, HttpProblem):
                self._held.gone.pop(session.key)  # it still exists, so it still counts as open
                self._held.open[session.key] = session
                raise
            session.history.clear()
        gone.is_complete = True
        self.closed(session.key)

    async def _delete_in_worker(self, session: Session) -> None:
        if session.is_stored:
            await self._copies.drop(session)
            return
        with contextlib.suppress(WorkerLost):
            limit = max(DELETE_S, self._settings.step_deadline)
            await self._copies.call(session, f"{self._kind.name}.delete", {}, NO_TENSORS, time.monotonic() + limit)

    # Time

    async def watch(self) -> None:
        """Close sessions with an expired lease and park idle ones, until cancelled. Run it as a task."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except StorageError as error:
                log.warning("sessions cannot be swept: %s", error)
            except Exception:  # without later sweeps, sessions would stay open and in memory for ever
                log.exception("sessions cannot be swept")

    async def sweep(self) -> None:
        """Close sessions with an expired lease, park idle ones, and note the position of the others."""
        if self._stored is not None and self._stored.is_shared:
            await self._saver.note()  # before anything ends because of its idle time in this process
        await self._close_expired()
        if self._stored is not None:
            await self._saver.sweep()
            self._count(await self._stored.count())

    async def _close_expired(self) -> None:
        for session in list(self._held.open.values()):
            if session.lease_left < 0 and not session.turn.locked() and not session.waiting:
                if session.is_stored and session.tenant in self.suspended():
                    session.used = time.monotonic()
                    continue
                try:
                    await self._close(session, EXPIRED)
                except EngineError:
                    continue  # the worker is busy: try again at the next sweep
        if self._stored is not None:
            await self._close_unused()

    async def _close_unused(self) -> None:
        """Close stored sessions whose lease has passed.

        The lease must have passed since this process started, too, so that a clock that jumps closes none.
        """
        assert self._stored is not None
        uptime = time.monotonic() - self._started
        for tenant, id, lease_s in await self._stored.unused_since(time.time(), MANY, self.suspended()):
            if lease_s > uptime or (tenant, id) in self._held.open:
                continue
            try:
                session = await self.find(tenant, id)
                await self._close(session, EXPIRED)
            except Fenced:
                continue  # another process has taken it over
            except HttpProblem as problem:
                if problem.code not in ("not-found", "gone"):  # for one that was deleted meanwhile
                    raise

    async def _make_room(self, other: Session | None) -> bool:
        return await self._saver.park_longest_idle(other)

    async def stop(self) -> None:
        """Save the sessions that are in workers. Call it when no more requests arrive, before the engine stops."""
        if self._stored is not None:
            await self._saver.stop()

    def _worker_lost(self, worker: str, reason: str) -> None:
        for session in self._held.open.values():
            if session.worker == worker:
                self._copies.lose(session, reason)
        self._count()

    def _count(self, stored: int | None = None) -> None:
        if self._metrics is None:
            return
        lost = sum(1 for session in self._held.open.values() if session.lost is not None)
        gauge = getattr(self._metrics, self._kind.plural)
        gauge.labels("open").set(len(self._held.open) - lost)
        gauge.labels("lost").set(lost)
        if stored is not None:
            held = sum(1 for session in self._held.open.values() if session.is_stored)
            gauge.labels("parked").set(max(0, stored - held))


EXPIRED = "expired: nothing used it for longer than its lease"
