"""The calls of sessions: those of one session run one at a time, in order of arrival.

A call that changes a stored session writes its journal entry while the worker computes; the answer leaves when both
have ended. If the worker ends, the session is rebuilt with the call, whose answer then comes from there. If the entry
cannot be stored, the worker's copy is dropped: the call has not happened. A call goes on when its client disconnects,
because the client can fetch the stored answer with its next try.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from service.engine import DeadlineExceeded, EngineError, QueueFull, RemoteError, Reply, WorkerLost
from service.engine.protocol import NO_TENSORS, PartCallback
from service.http.idempotency import outcome_unknown
from service.http.request_body import Body
from service.http.tensor_payloads import THREAD_BYTES, Answer
from service.http.worker_calls import STOP, Calls
from service.problems import HttpProblem, from_exception
from service.sessions.answer import written
from service.sessions.copies import delete_copy
from service.sessions.entry import Entry, Form
from service.sessions.recovery import Rebuilder
from service.sessions.session import Kind, Session, Unsure
from service.sessions.stored import Fenced, StoredSessions
from service.settings import Settings
from service.store.errors import StorageError

__all__ = ["Turns", "Write"]

log = logging.getLogger("backpass.sessions")

TAKEOVERS = 5  # by other processes during one call

T = TypeVar("T")


class _Taken(Fenced):
    """Another process has taken the session over with the entry of the running call, which it repeats."""


Tensors = Mapping[str, np.ndarray]
Render = Callable[[Reply], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Write:
    """A call that changes a session.

    seq:  the sequence number; None for the next one.
    sent: the kind of request and its parameters, as a part of the digest.
    form: of the answer, so that it can be written again after a loss; None if `write` gets a function for that.
    steps: number of updates of the parameters; None for the usual one of the call.
    on_part: as in `Engine.call`; a call that is repeated from the journal has no parts.
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

    @property
    def updates(self) -> int:
        """The number of updates of the parameters, if none of them fails."""
        if self.steps is not None:
            return self.steps
        return UPDATES.get(self.op, 0) * (self.args.get("batches") or 1)

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


class Turns:
    """The calls of all sessions of a registry."""

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        calls: Calls,
        held: dict[tuple[str, str], Session],
        find: Callable[[str, str], Awaitable[Session]],
        stored: StoredSessions | None,
        rebuilder: Rebuilder | None,
        changed: Callable[[Session], None],
    ) -> None:
        """held: the sessions of this process by key.

        find: loads a session by tenant and id, or raises HttpProblem 404 or 410.
        changed: called after each change of a stored session.
        """
        self._kind, self._settings, self._calls = kind, settings, calls
        self._held, self._find, self._stored, self._rebuilder = held, find, stored, rebuilder
        self._changed = changed
        self._running: set[asyncio.Task[Any]] = set()

    # Calls

    async def read(
        self,
        session: Session,
        op: str,
        args: dict[str, Any],
        tensors: Tensors,
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> Reply:
        """Run a call that does not change the session. on_part: as in `Engine.call`."""
        parts = 0

        def part(result: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
            nonlocal parts
            parts += 1
            assert on_part is not None
            on_part(result, arrays)

        async def running(session: Session, give_up: float) -> Reply:
            while True:
                if on_part is not None:  # parts from values that are out of date cannot be taken back
                    await self._check_owned(session)
                owning = self._owning(session)
                try:
                    found = None if on_part is None else part
                    reply = await self._call(session, op, args, tensors, give_up, found)
                except WorkerLost as error:
                    if parts or not session.is_stored:
                        raise self._told(session, error) from error
                    await self._ready(session, give_up)
                    continue
                finally:
                    owned = owning is None or await owning
                if not owned and not parts:
                    raise Fenced
                session.adopt(reply.result)
                return self._noted(session, reply)

        return await self._kept_running(self._in_turn(session, deadline, running))

    async def _check_owned(self, session: Session) -> None:
        """Raises Fenced if another process of the service has taken the session over."""
        if not await self.is_current(session):
            raise Fenced

    async def is_current(self, session: Session) -> bool:
        """Whether no other process of the service has taken the session over."""
        owning = self._owning(session)
        return owning is None or await owning

    def _owning(self, session: Session) -> asyncio.Task[bool] | None:
        """Asks whether this process still holds the session, where others could have taken it over."""
        if self._stored is None or not session.is_stored or not self._stored.is_shared:
            return None
        return asyncio.create_task(self._stored.owns(session))

    async def write(
        self, session: Session, write: Write, deadline: float, render: Render | None = None
    ) -> tuple[Answer, bool]:
        """Run a call that changes the session, once for each seq; (answer, whether it is a replayed one).

        render: writes the answer; by default it is written in the form of `write`.
        Raises HttpProblem 409 for a seq that is neither the next one nor a repetition, and the errors of `read`.
        A failed call changes neither the session nor its seq.
        """

        used = write.seq

        async def running(session: Session, give_up: float) -> tuple[Answer, bool]:
            nonlocal used
            seq = session.seq + 1 if used is None else used
            if seq != session.seq + 1:
                await self._check_owned(session)
                return self._replayed(session, seq, write), True
            try:
                reply = await self._applied(session, write, seq, give_up)
            except _Taken:
                used = seq
                raise
            answer = await (written(reply, write.form or {}) if render is None else render(reply))
            session.history.add(seq, write.digest, answer)
            return answer, False

        return await self._kept_running(self._in_turn(session, deadline, running))

    async def change(
        self,
        session: Session,
        op: str,
        args: Callable[[Session], dict[str, Any]],
        tensors: Tensors,
        allowed: Callable[[str], bool],
        deadline: float,
    ) -> Reply:
        """Run a call that changes the session without a number, if `allowed` accepts the present ETag.

        args: makes the arguments from the session as it is when earlier calls have ended.
        Raises HttpProblem 412 if the ETag is not accepted.
        """

        n: int | None = None

        async def running(session: Session, give_up: float) -> Reply:
            nonlocal n
            if n is not None and session.entry >= n:  # another process has made the change
                about = await self._call(session, f"{self._kind.name}.describe", {}, NO_TENSORS, give_up)
                return self._noted(session, about)
            if not allowed(session.etag):
                await self._check_owned(session)
                detail = "the session has changed since the version in If-Match"
                raise HttpProblem("precondition-failed", detail, **session.position)
            try:
                return await self._applied(session, Write(op, args(session), tensors, 0, op), 0, give_up)
            except _Taken:
                n = session.entry + 1
                raise

        return await self._kept_running(self._in_turn(session, deadline, running))

    async def alone(self, session: Session, deadline: float, work: Callable[[Session, float], Awaitable[T]]) -> T:
        """Run `work` between the calls of the session, which is in a worker then.

        Its arguments are the session, and the deadline as a value of time.monotonic(). It runs also if the session lost
        changes and no client knows.
        """
        return await self._kept_running(self._in_turn(session, deadline, work, tells=False))

    def _replayed(self, session: Session, seq: int, write: Write) -> Answer:
        """The stored answer to a repeated request. Raises HttpProblem 409."""
        if seq > session.seq:
            raise HttpProblem("sequence-gap", f"expected seq {session.seq + 1}, got {seq}", **session.position)
        found = session.history.get(seq)
        if found is not None and found.digest == write.digest:
            if found.answer is not None:
                return found.answer
            detail = f"seq {seq} has taken effect, but its answer is not stored any more"
        elif found is not None:
            detail = f"seq {seq} was used with another body"
        else:
            detail = f"seq {seq} is too old: the service no longer knows its body"
        raise HttpProblem("sequence-conflict", detail, **session.position)

    # One turn

    async def _in_turn(
        self,
        session: Session,
        deadline: float,
        work: Callable[[Session, float], Awaitable[T]],
        *,
        tells: bool = True,
    ) -> T:
        """Run `work` when all earlier calls of the session have ended; its last argument is the deadline, a value of
        time.monotonic()."""
        give_up = time.monotonic() + deadline
        taken: _Taken | None = None
        try:
            for _ in range(TAKEOVERS):
                if self._held.get(session.key) is not session:  # parked, closed, or taken over by another process
                    session = await self._find(session.tenant, session.id)
                await self._enter(session, give_up)
                try:
                    if self._held.get(session.key) is not session:
                        continue
                    if session.lost is not None:
                        raise await self._lost(session)
                    if not session.is_settled or session.rolled_back:
                        await self._ready(session, give_up, tells)
                    return await work(session, give_up)
                except Fenced as fenced:
                    log.info("session %s was taken over by another process of the service", session.id)
                    taken = fenced if isinstance(fenced, _Taken) else taken
                    await self._forget(session)
                finally:
                    session.waiting -= 1
                    session.turn.release()
                    session.used = time.monotonic()
            raise HttpProblem("no-capacity", f"several processes of the service use this {self._kind.name} at a time")
        except (HttpProblem, EngineError, StorageError) as error:
            problem = from_exception(error)
            if taken is None or problem.status < 500 or problem.code == "recovering":
                raise
            detail = f"another process of the service has the session: {problem.detail}; {STILL_STORED}"
            raise HttpProblem("recovering", detail) from error

    async def _enter(self, session: Session, give_up: float) -> None:
        if session.waiting > self._settings.session_pipeline:
            raise QueueFull(f"{session.waiting - 1} calls of this {self._kind.name} are already waiting")
        session.used = time.monotonic()
        session.waiting += 1
        try:
            if session.turn.locked():
                async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                    await session.turn.acquire()
            else:
                await session.turn.acquire()
        except TimeoutError:
            session.waiting -= 1
            raise DeadlineExceeded(
                f"the deadline passed while earlier calls of the {self._kind.name} ran", waited=True
            ) from None

    async def _lost(self, session: Session) -> HttpProblem:
        """The problem for a session whose values are lost: it names the places to go on from."""
        last = None if self._stored is None else await self._stored.last_checkpoint(*session.key)
        more = session.origin | ({} if last is None else {"checkpoint": last.id, "checkpoint_step": last.step})
        how = "is lost" if session.is_stored else "was lost with its worker"
        detail = f"the {self._kind.name} {how} ({session.lost}); create a new one"
        return HttpProblem("gone", detail, state="lost", **more, **session.position)

    async def _ready(self, session: Session, give_up: float, tells: bool = True) -> None:
        """Let the session be in a worker, in a known state. tells: raise HttpProblem 409 if it lost changes."""
        if session.unsure is not None:
            await self._make_sure(session, session.unsure)
        if not session.worker:
            await self._rebuilt(session, give_up, None)
        if session.rolled_back and tells:
            assert self._stored is not None
            await self._stored.set_dirty(session, False)
            session.rolled_back = False
            raise HttpProblem(
                "rolled-back",
                f"the worker of the session ended; it goes on from its checkpoint at step {session.step}",
                step=session.step,
                durable_step=session.durable_step,
                **session.position,
            )

    async def _make_sure(self, session: Session, unsure: Unsure) -> None:
        """Ask the worker whether the last call took effect, and let the journal say the same."""
        give_up = time.monotonic() + self._settings.step_deadline
        try:
            reply = await self._call(session, f"{self._kind.name}.describe", {}, NO_TENSORS, give_up)
        except WorkerLost as error:
            if not session.is_stored:
                raise self._told(session, error) from error
            return  # `lose` has marked the entry: the call has not happened
        now = reply.result
        steps = now["step"] - session.step
        before = session.step, session.version, session.seq, session.accumulated
        changed = before != (now["step"], now["version"], now["seq"], now.get("accumulated", 0))
        if unsure.entry is not None:
            assert self._stored is not None
            n, entry = unsure.entry
            if not changed:
                await self._stored.void(session, n)
            elif entry.op in ("session.step", "session.fit") and steps < (entry.args.get("batches") or 0):
                outcome = {"applied": steps, "stopped": LATE | {"batch": steps}}
                await self._stored.rewrite(session, n, replace(entry, stopped=outcome), now["step"])
        session.adopt(now)
        session.unsure = None
        if changed:
            session.entry += session.is_stored
            if unsure.seq:
                session.history.add(unsure.seq, unsure.digest, None)

    # Changes

    async def _applied(self, session: Session, write: Write, seq: int, give_up: float) -> Reply:
        """Run a call that changes the session, and store it as its durability demands.

        Raises _Taken if another process has taken the session over with the entry of the call, and Fenced if without.
        """
        if write.on_part is not None:  # parts from values that are out of date cannot be taken back
            await self._check_owned(session)
        n, storing = session.entry + 1, None
        if session.durability == "journal":
            storing = asyncio.create_task(self._append(session, n, write, seq, give_up))
            storing.add_done_callback(_retrieved)
            await asyncio.sleep(0)  # the entry is on its way to the disk while the call is written to the worker
        elif write.body is not None:
            asyncio.get_running_loop().call_soon(lambda: write.digest)  # while this task waits for the worker
        if session.durability == "checkpoint":
            assert self._stored is not None
            if session.dirty:
                await self._check_owned(session)
            else:
                await self._stored.set_dirty(session, True)
        change = _Change(session, write, seq, n, storing)
        try:
            reply = await self._ended(change, give_up)
        except Fenced:
            if change.is_stored:
                raise _Taken from None
            raise
        except StorageError as error:
            if storing is None or await self._is_undone(session, n) or write.seq is not None:
                raise
            raise outcome_unknown("the store failed while it kept the call") from error
        session.adopt(reply.result)
        if session.is_stored:
            session.entry = n
            session.unsaved_s += reply.timing_ms.get("compute", 0.0) / 1e3
            self._changed(session)
        return self._noted(session, reply)

    async def _ended(self, change: _Change, give_up: float) -> Reply:
        """The reply of a call, when its entry is stored as well."""
        session, write, seq, n, storing = change.session, change.write, change.seq, change.n, change.storing
        args = {**write.args, "seq": seq} if seq else write.args
        try:
            reply = await self._call(session, write.op, args, write.tensors, give_up, write.on_part, STOP.get())
        except WorkerLost as error:
            if storing is None:
                raise self._told(session, error) from error
            reply = await self._rebuilt_with(session, n, storing, give_up, error)
        except Exception as error:
            await self._failed(change, error)
            if session.unsure is not None and isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(f"{error}; {UNSURE}", waited=False) from error
            raise
        else:
            if storing is not None:
                await self._stored_too(session, n, storing, reply)
        return reply

    async def _is_undone(self, session: Session, n: int) -> bool:
        """Delete entry `n`, which may be stored although the store has failed; whether that succeeded.

        Raises _Taken if another process has taken the session over, perhaps with the entry.
        """
        try:
            await self._stored.void(session, n)  # type: ignore[union-attr]
        except StorageError:
            return False
        except Fenced:
            raise _Taken from None
        return True

    async def _append(self, session: Session, n: int, write: Write, seq: int, give_up: float) -> Entry:
        """Store the call as entry `n`."""
        assert self._stored is not None
        limit = give_up - time.monotonic()
        entry = Entry(write.op, write.args, write.tensors, seq, await write.hash(), write.form, limit)
        session.unsaved_bytes += await self._stored.append(session, n, entry, session.step + write.updates)
        return entry

    async def _stored_too(self, session: Session, n: int, storing: asyncio.Task[Entry], reply: Reply) -> None:
        """Wait for the entry of a call that took effect. If it is not stored, the call has not happened."""
        ended = time.perf_counter()
        try:
            entry = await storing
            if self._calls.metrics is not None:
                self._calls.metrics.journal_seconds.observe(time.perf_counter() - ended)
            if reply.result.get("stopped") is not None:
                outcome = {name: reply.result[name] for name in ("applied", "stopped")}
                assert self._stored is not None
                await self._stored.rewrite(session, n, replace(entry, stopped=outcome), reply.result["step"])
        except (StorageError, Fenced):
            session.void = n
            await self.drop(session)
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
        session.deaths = n, 1
        try:
            done, reply = await self._rebuilt(session, give_up, n)
        except (EngineError, StorageError) as failure:  # by itself it would say that the call has not happened
            detail = f"the worker of the call ended, and another cannot run it yet: {failure}; {STILL_STORED}"
            raise HttpProblem("recovering", detail) from failure
        if done != n or reply is None:
            if time.monotonic() >= give_up:
                raise DeadlineExceeded("the deadline of the call has passed", waited=False)
            detail = "the call ended each worker that ran it, and was given up; the session is as before the call"
            problem = self._told(session, error)
            problem.detail, problem.retryable = detail, False
            raise problem from error
        return reply

    async def _failed(self, change: _Change, error: Exception) -> None:
        """Settle a call that failed: delete its entry, or note that it may have taken effect."""
        session, write, seq, n, storing = change.session, change.write, change.seq, change.n, change.storing
        changed_nothing = isinstance(error, QueueFull)
        if isinstance(error, RemoteError):
            changed_nothing = error.kind in ("program", "execution")  # handlers raise these before they change anything
        elif isinstance(error, DeadlineExceeded):
            changed_nothing = error.waited
        if storing is None:
            session.unsure = None if changed_nothing else Unsure(seq, write.digest, None)
            return
        try:
            entry = await storing
        except StorageError:
            session.void = n
            if changed_nothing:
                return
            await self.drop(session)
            raise
        if changed_nothing:
            assert self._stored is not None
            await self._stored.void(session, n)
        else:
            session.unsure = Unsure(seq, entry.digest, (n, entry))

    # Workers

    async def _rebuilt(self, session: Session, give_up: float, pending: int | None) -> tuple[int, Reply | None]:
        """Wait until the session is rebuilt; (number, reply) of its last call. pending: as of `Rebuilder.rebuild`.

        If the deadline passes, the rebuilding goes on.
        """
        assert self._rebuilder is not None
        task = session.rebuilding
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = session.rebuilding = asyncio.create_task(self._rebuilder.rebuild(session, pending, give_up))
        await asyncio.wait({task}, timeout=max(0.0, give_up - time.monotonic()))
        if not task.done():
            again = "" if pending is None else f"; {STILL_STORED}"
            raise HttpProblem("recovering", f"the session is being rebuilt from its checkpoint and journal{again}")
        session.rebuilding = None
        try:
            return task.result()
        except DeadlineExceeded as error:
            raise HttpProblem("recovering", f"the session could not be rebuilt yet: {error}") from error

    async def _call(
        self,
        session: Session,
        op: str,
        args: dict[str, Any],
        tensors: Tensors,
        give_up: float,
        on_part: PartCallback | None = None,
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """Run `op` in the session's worker. give_up: the deadline, a value of time.monotonic(). Raises EngineError."""
        args = {**args, "id": session.handle}
        left = max(0.0, give_up - time.monotonic())
        try:
            return await self._calls.call(
                op, args, tensors, worker=session.worker, deadline=left, on_part=on_part, stop=stop
            )
        except WorkerLost as error:
            self.lose(session, error.reason)
            raise

    def lose(self, session: Session, reason: str) -> None:
        """The worker of the session ended."""
        if session.is_stored:
            session.worker = ""
            if session.unsure is not None:
                if session.unsure.entry is not None:
                    session.void = session.unsure.entry[0]
                session.unsure = None
        elif session.lost is None:
            session.lost = reason

    async def drop(self, session: Session) -> None:
        """Delete the worker's copy of the session, which differs from the stored one."""
        worker, session.worker, session.unsure = session.worker, "", None
        if worker:
            await delete_copy(self._calls, self._kind, session, worker)

    async def forget(self, session: Session) -> None:
        """Forget the session, which another process has taken over or deleted.

        A running call or a rebuilding finds out by itself; it must not meet a second rebuilding in the same worker.
        """
        is_free = not session.turn.locked() and (session.rebuilding is None or session.rebuilding.done())
        if is_free and self._held.get(session.key) is session:
            async with session.turn:
                await self._forget(session)

    async def _forget(self, session: Session) -> None:
        await self.drop(session)
        if self._held.get(session.key) is session:
            del self._held[session.key]

    def _told(self, session: Session, error: WorkerLost) -> HttpProblem:
        problem = from_exception(error)
        problem.extensions |= {self._kind.name: session.id, **session.position}
        return problem

    def _noted(self, session: Session, reply: Reply) -> Reply:
        """The reply with the durable step."""
        if self._stored is not None or session.program_id:
            reply.result["durable_step"] = session.durable_step
        return reply

    async def _kept_running(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as a task that goes on when the caller is cancelled; returns its result."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def running() -> None:
            try:
                found = await work
            except Exception as error:
                if not result.done():
                    result.set_exception(error)
            else:
                if not result.done():
                    result.set_result(found)
            finally:
                result.cancel()

        task = asyncio.create_task(running())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await result

    kept_running = _kept_running


def _retrieved(storing: asyncio.Task[Entry]) -> None:
    """Nobody waits for the entry of a call that was cancelled, because the service ends."""
    if not storing.cancelled():
        storing.exception()


UPDATES = {"session.step": 1, "session.update": 1}
"""Calls that update the parameters: once, or once for each of several batches."""

STILL_STORED = "the journal has the call, which will run; if it has a seq, send it again to get its answer"
"""About a call whose entry is stored, but which no worker has run to its end yet."""

UNSURE = "it may have taken effect, or some of its steps: read the session to see its step"
"""About a call whose answer came too late."""

LATE = {"code": "deadline_exceeded", "detail": "the deadline of the call has passed"}
"""The reason why the last steps of a call were not taken whose answer came too late."""
