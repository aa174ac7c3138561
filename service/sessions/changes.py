"""Calls that change a session, and their journal entries.

A call that changes a stored session writes its journal entry while the worker computes; the answer leaves when both
have ended. If the worker ends, the session is rebuilt with the call, whose answer then comes from there. If the entry
cannot be stored, the worker's copy is dropped: the call has not happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.engine import Barred, DeadlineExceeded, EngineError, QueueFull, RemoteError, Reply, WorkerLost
from service.engine.protocol import NO_TENSORS, PartCallback
from service.http.entity_tags import Accepts, any_tag
from service.http.idempotency import outcome_unknown
from service.http.request_body import Body
from service.http.tensor_payloads import THREAD_BYTES
from service.http.worker_calls import STOP
from service.ids import random_id
from service.observability.metrics import Metrics
from service.problems import HttpProblem
from service.sessions.copies import Copies
from service.sessions.entry import Entry, Form, ended_as
from service.sessions.epoch import Fenced
from service.sessions.recovery import STILL_STORED, Rebuilder
from service.sessions.session import Kind, Session, Unsure
from service.sessions.stored import StoredSessions
from service.settings import Settings
from service.store.errors import StorageError, StorageFull

__all__ = ["Changes", "Taken", "Write"]

Tensors = Mapping[str, np.ndarray]

MARK = f"{random_id()}."
_calls = itertools.count()


class Taken(Fenced):
    """Another process has taken the session over with the entry of the running call, which it repeats.

    For a call with a number of the client it may also be without.
    """


@dataclass(frozen=True, slots=True)
class Write:
    """A call that changes a session.

    seq:  the sequence number; None for the next one.
    sent: the kind of request and its parameters, as a part of the digest.
    form: of the answer, so that it can be written again after a loss; None if `write` gets a function for that.
    steps: number of updates of the parameters; None for the usual one of the call.
    on_part: as in `Engine.call`; a call that is repeated from the journal has no parts.
    accepts: the ETags that the client accepts of the session before the call.
    mark:  a text that no other call has.
    """

    op: str
    args: dict[str, Any]
    tensors: Tensors
    seq: int | None
    sent: str
    body: Body | None = None
    form: Form | None = None
    steps: int | None = None
    on_part: PartCallback | None = None
    accepts: Accepts = any_tag
    mark: str = field(default_factory=lambda: f"{MARK}{next(_calls)}")

    @property
    def updates(self) -> int:
        """The number of updates of the parameters, if none of them fails."""
        if self.steps is not None:
            return self.steps
        return UPDATES.get(self.op, 0) * (self.args.get("batches") or 1)

    def after(self, session: Session) -> tuple[int, int]:
        """Version and accumulated gradients of the session after the call, if it ends as most do."""
        version, accumulated = session.version + self.updates, session.accumulated
        if self.op in NEW_VERSION:
            version += 1
        elif self.op == "session.gradients":
            accumulated += self.args.get("batches") or 1
        elif self.op == "session.discard" or (self.op == "session.update" and not self.tensors):
            accumulated = 0
        return version, accumulated

    @property
    def digest(self) -> str:
        """A digest of the request, equal for a request that is sent twice."""
        return self.sent if self.body is None else f"{self.sent} {self.body.digest}"

    async def hash(self) -> str:
        """Compute and cache the digest; in a thread if the body is large."""
        if self.body is not None and len(self.body.raw) > THREAD_BYTES:
            await asyncio.to_thread(lambda: self.digest)
        return self.digest


@dataclass(frozen=True, slots=True)
class _Change:
    """A running call that changes a session. seq: its number; 0 for none.

    n:       the number of its journal entry.
    storing: stores the entry; None for a session without a journal.
    """

    session: Session
    write: Write
    seq: int
    n: int
    storing: asyncio.Task[Entry] | None

    @property
    def is_stored(self) -> bool:
        """Whether the journal has the entry."""
        storing = self.storing
        return storing is not None and storing.done() and not storing.cancelled() and storing.exception() is None


class Changes:
    """Runs the changes of all sessions of a registry, each in the turn of its session."""

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        metrics: Metrics | None,
        copies: Copies,
        stored: StoredSessions | None,
        rebuilder: Rebuilder | None,
        changed: Callable[[Session], None],
        stepped: Callable[[str, int], None],
    ) -> None:
        """changed: called after each change of a stored session.

        stepped: called with the tenant and the number of steps of each call that has taken effect.
        """
        self._kind, self._settings, self._metrics, self._copies = kind, settings, metrics, copies
        self._stored, self._rebuilder, self._changed, self._stepped = stored, rebuilder, changed, stepped

    async def apply(self, session: Session, write: Write, seq: int, give_up: float) -> Reply:
        """Run a call that changes the session, and store it as its durability demands.

        Raises Taken if another process has taken the session over with the entry of the call, and Fenced if without.
        """
        if write.on_part is not None:  # parts from values that are out of date cannot be taken back
            await self._copies.check_current(session)
        n, before, storing = session.entry + 1, session.step, None
        if session.durability == "journal":
            storing = asyncio.create_task(self._append(session, n, write, seq, give_up))
            storing.add_done_callback(_retrieved)
            await asyncio.sleep(0)  # the entry is on its way to the disk while the call is written to the worker
        elif write.body is not None:
            asyncio.get_running_loop().call_soon(lambda: write.digest)  # while this task waits for the worker
        if session.durability == "checkpoint":
            assert self._stored is not None
            if session.dirty:
                await self._copies.check_current(session)
            else:
                await self._stored.set_dirty(session, True)
        change = _Change(session, write, seq, n, storing)
        try:
            reply = await self._ended(change, give_up)
        except Fenced:
            if change.is_stored:
                raise Taken from None
            raise
        except StorageError as error:
            if isinstance(error, StorageFull) and session.entry != session.saved_entry:
                session.lacks_room = True  # a checkpoint may take less of it than the calls since the last one
                self._changed(session)
            if storing is None or await self._is_undone(session, n, write) or write.seq is not None:
                raise
            raise outcome_unknown("the store failed while it kept the call") from error
        session.adopt(reply.result)
        self.count(session, write.op, session.step - before)
        if session.is_stored:
            session.entry = n
            session.unsaved_s += reply.timing_ms.get("compute", 0.0) / 1e3
            self._changed(session)
            if "optimizer" in reply.result and self._stored is not None and self._stored.is_shared:
                with contextlib.suppress(StorageError):  # else other processes see the new settings some seconds later
                    await self._stored.note([session])
        return session.noted(reply)

    def count(self, session: Session, op: str, steps: int) -> None:
        """Count the steps of a call that has taken effect; of other calls than steps nothing."""
        if op in STEPPING and steps > 0:
            self._stepped(session.tenant, steps)

    async def _ended(self, change: _Change, give_up: float) -> Reply:
        """The reply of a call, when its entry is stored as well."""
        session, write, seq, n, storing = change.session, change.write, change.seq, change.n, change.storing
        args = {**write.args, "seq": seq} if seq else write.args
        try:
            reply = await self._copies.call(session, write.op, args, write.tensors, give_up, write.on_part, STOP.get())
        except WorkerLost as error:
            if storing is None:
                raise self._copies.told(session, error) from error
            reply = await self._rebuilt_with(session, n, storing, give_up, error)
        except Exception as error:
            await self._failed(change, error)
            if session.unsure is not None and isinstance(error, DeadlineExceeded):
                unsure = UNSURE[self._kind.name]
                raise DeadlineExceeded(f"{error}; it may have taken effect{unsure}", waited=False) from error
            raise
        else:
            if storing is not None:
                await self._stored_too(session, n, storing, reply)
        return reply

    async def _is_undone(self, session: Session, n: int, write: Write) -> bool:
        """Delete entry `n`, which may be stored although the store has failed; whether that succeeded.

        Raises Taken or Fenced if another process has taken the session over, with the entry or without.
        """
        assert self._stored is not None
        try:
            await self._stored.journal.void(session, n)
        except StorageError:
            return False
        except Fenced:
            try:
                has_entry = await self._stored.journal.has_entry(session, n, write.mark)
            except StorageError:
                return False
            if has_entry is False:
                raise
            if has_entry is None and not write.seq:
                return False
            raise Taken from None
        return True

    async def _append(self, session: Session, n: int, write: Write, seq: int, give_up: float) -> Entry:
        """Store the call as entry `n`."""
        assert self._stored is not None
        limit = give_up - time.monotonic()
        after = write.after(session)
        entry = Entry(
            write.op,
            write.args,
            write.tensors,
            seq,
            await write.hash(),
            write.form,
            limit,
            after=after,
            mark=write.mark,
        )
        session.unsaved_bytes += await self._stored.journal.append(session, n, entry, session.step + write.updates)
        return entry

    async def _stored_too(self, session: Session, n: int, storing: asyncio.Task[Entry], reply: Reply) -> None:
        """Wait for the entry of a call that took effect. If it is not stored, the call has not happened."""
        ended = time.perf_counter()
        try:
            entry = await storing
            if self._metrics is not None:
                self._metrics.journal_seconds.observe(time.perf_counter() - ended)
            known = ended_as(entry, reply.result)
            if (known.stopped, known.after) != (entry.stopped, entry.after):
                assert self._stored is not None
                await self._stored.journal.rewrite(session, n, known, reply.result["step"])
        except (StorageError, Fenced):
            session.void = n
            await self._copies.drop(session)
            raise

    async def _rebuilt_with(
        self, session: Session, n: int, storing: asyncio.Task[Entry], give_up: float, error: WorkerLost
    ) -> Reply:
        """The reply of a call whose worker ended: the session is rebuilt with the call."""
        try:
            await storing
        except StorageError:
            session.void = n
            raise
        session.deaths = n, int(error.began)
        try:
            assert self._rebuilder is not None
            done, reply = await self._rebuilder.rebuilt(session, give_up, n)
        except (EngineError, StorageError) as failure:  # by itself it would say that the call has not happened
            detail = f"the worker of the call ended, and another cannot run it yet: {failure}; {STILL_STORED}"
            raise HttpProblem("recovering", detail) from failure
        if done != n or reply is None:
            if time.monotonic() >= give_up:
                raise DeadlineExceeded("the deadline of the call has passed", waited=False)
            raise self._copies.given_up(session, error) from error
        return reply

    async def _failed(self, change: _Change, error: Exception) -> None:
        """Settle a call that failed: delete its entry, or note that it may have taken effect."""
        session, write, seq, n, storing = change.session, change.write, change.seq, change.n, change.storing
        changed_nothing = isinstance(error, QueueFull | Barred)
        if isinstance(error, RemoteError):
            changed_nothing = error.kind in ("program", "execution")  # handlers raise these before they change anything
        elif isinstance(error, DeadlineExceeded):
            changed_nothing = error.waited
        if storing is None:
            session.unsure = None if changed_nothing else Unsure(seq, write.digest, write.op, None)
            return
        try:
            entry = await storing
        except StorageError:
            session.void = n
            if changed_nothing:
                return
            await self._copies.drop(session)
            raise
        if changed_nothing:
            assert self._stored is not None
            await self._stored.journal.void(session, n)
        else:
            session.unsure = Unsure(seq, entry.digest, entry.op, (n, entry))

    async def make_sure(self, session: Session, unsure: Unsure) -> None:
        """Ask the worker whether the last call took effect, and let the journal say the same."""
        give_up = time.monotonic() + self._settings.step_deadline
        try:
            reply = await self._copies.call(session, f"{self._kind.name}.describe", {}, NO_TENSORS, give_up)
        except WorkerLost as error:
            if not session.is_stored:
                raise self._copies.told(session, error) from error
            return  # `lose` has marked the entry: the call has not happened
        now = reply.result
        steps = now["step"] - session.step
        before = session.step, session.version, session.seq, session.accumulated
        changed = before != (now["step"], now["version"], now["seq"], now.get("accumulated", 0))
        if unsure.entry is not None:
            assert self._stored is not None
            n, entry = unsure.entry
            if not changed:
                await self._stored.journal.void(session, n)
            elif entry.op in ("session.step", "session.fit") and steps < (entry.args.get("batches") or 0):
                outcome = {"applied": steps, "stopped": LATE | {"batch": steps}}
                await self._stored.journal.rewrite(session, n, ended_as(entry, now | outcome), now["step"])
            elif (known := ended_as(entry, now)).after != entry.after:
                await self._stored.journal.rewrite(session, n, known, now["step"])
        session.adopt(now)
        session.unsure = None
        if changed:
            session.entry += session.is_stored
            self.count(session, unsure.op, steps)
            if unsure.seq:
                session.history.add(unsure.seq, unsure.digest, None)


def _retrieved(storing: asyncio.Task[Entry]) -> None:
    """Nobody waits for the entry of a call that was cancelled, because the service ends."""
    if not storing.cancelled():
        storing.exception()


NEW_VERSION = frozenset({"session.put_parameters", "session.put_optimizer", "session.configure"})
"""Calls that replace values or settings: each makes one version."""

UPDATES = {"session.step": 1, "session.update": 1}
"""Calls that update the parameters: once, or once for each of several batches."""

STEPPING = frozenset({"session.step", "session.update", "session.fit"})
"""Calls whose steps count in the usage of the tenant."""

UNSURE = {
    "session": ", or some of its steps: read the session to see its step",
    "tape": ": read the tape to see its next seq",
}
"""Kind -> the advice in the problem of a call whose answer came too late."""

LATE = {"code": "deadline_exceeded", "detail": "the deadline of the call has passed"}
"""The reason why the last steps of a call were not taken whose answer came too late."""
