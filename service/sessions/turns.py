"""The calls of sessions: those of one session run one at a time, in order of arrival.

A call goes on when its client disconnects, because the client can fetch the stored answer with its next try.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from service.engine import DeadlineExceeded, EngineError, QueueFull, Reply, WorkerLost
from service.engine.protocol import NO_TENSORS, PartCallback
from service.http.entity_tags import Accepts, any_tag
from service.http.tensor_payloads import Answer
from service.problems import HttpProblem, from_exception
from service.sessions.answer import written
from service.sessions.changes import Changes, Taken, Write
from service.sessions.copies import MOST_DEATHS, Copies
from service.sessions.epoch import Fenced
from service.sessions.recovery import STILL_STORED, Rebuilder
from service.sessions.session import Kind, Session
from service.sessions.stored import StoredSessions
from service.settings import Settings
from service.store import patience
from service.store.errors import StorageError, StorageFull

__all__ = ["Turns"]

log = logging.getLogger("backpass.sessions")

TAKEOVERS = 5  # by other processes during one call

T = TypeVar("T")
Tensors = Mapping[str, np.ndarray]
Render = Callable[[Reply], Awaitable[Answer]]


class Turns:
    """The calls of all sessions of a registry."""

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        held: dict[tuple[str, str], Session],
        find: Callable[[str, str, bool], Awaitable[Session]],
        copies: Copies,
        changes: Changes,
        stored: StoredSessions | None,
        rebuilder: Rebuilder | None,
    ) -> None:
        """held: the sessions of this process by key.

        find: loads a session by tenant and id, as `SessionRegistry.find`.
        """
        self._kind, self._settings, self._held, self._find = kind, settings, held, find
        self._copies, self._changes, self._stored, self._rebuilder = copies, changes, stored, rebuilder
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
        accepts: Accepts = any_tag,
    ) -> Reply:
        """Run a call that does not change the session. on_part: as in `Engine.call`.

        accepts: the ETags that the client accepts of the session. Raises HttpProblem 412 for another one.
        """
        parts = deaths = 0

        def part(result: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
            nonlocal parts
            parts += 1
            assert on_part is not None
            on_part(result, arrays)

        async def running(session: Session, give_up: float) -> Reply:
            nonlocal deaths
            await self._copies.check_accepted(session, accepts)
            while True:
                if on_part is not None:  # parts from values that are out of date cannot be taken back
                    await self._copies.check_current(session)
                owning = self._copies.asked(session)
                try:
                    found = None if on_part is None else part
                    reply = await self._copies.call(session, op, args, tensors, give_up, found)
                except WorkerLost as error:
                    if parts or not session.is_stored:
                        raise self._copies.told(session, error) from error
                    deaths += error.began
                    if deaths == MOST_DEATHS:
                        raise self._copies.given_up(session, error) from error
                    await self._ready(session, give_up)
                    continue
                finally:
                    owned = owning is None or await owning
                if not owned and not parts:
                    raise Fenced
                session.adopt(reply.result)
                return session.noted(reply)

        return await self.kept_running(self._in_turn(session, deadline, running, reads=True))

    async def write(
        self, session: Session, write: Write, deadline: float, render: Render | None = None
    ) -> tuple[Answer, bool]:
        """Run a call that changes the session, once for each seq; (answer, whether it is a replayed one).

        render: writes the answer; by default it is written in the form of `write`.
        Raises HttpProblem 409 for a seq that is neither the next one nor a repetition, and the errors of `read`; 412
        goes before 409. A repetition gets its stored answer at any version: the call has taken effect at the one that
        its client accepted.
        A failed call changes neither the session nor its seq.
        """

        used = write.seq
        sent = _Sent(write)
        taken_at: int | None = None  # the step before the call, which another process has repeated
        n = 0  # the number of its entry then

        async def running(session: Session, give_up: float) -> tuple[Answer, bool]:
            nonlocal used, taken_at, n
            seq = session.seq + 1 if used is None else used
            if seq != session.seq + 1 and write.seq is None and not await self._has_made(session, n, write):
                seq = session.seq + 1  # another process gave the number to another call
            if seq != session.seq + 1:
                await self._copies.check_current(session)
                try:
                    found = self._replayed(session, seq, write)
                except HttpProblem:
                    await self._copies.check_accepted(session, write.accepts)  # another version tells more
                    raise
                if taken_at is not None:
                    self._changes.count(session, write.op, min(write.updates, session.step - taken_at))
                return found, True
            await self._copies.check_accepted(session, write.accepts)
            before = session.step
            try:
                reply = await self._changes.apply(session, sent.of(session), seq, give_up)
            except Taken:
                used, taken_at, n = seq, before, session.entry + 1
                raise
            answer = await (written(reply, write.form or {}) if render is None else render(reply))
            session.history.add(seq, write.digest, answer)
            return answer, False

        return await self.kept_running(self._in_turn(session, deadline, running))

    async def change(
        self,
        session: Session,
        op: str,
        args: Callable[[Session], dict[str, Any]],
        tensors: Tensors,
        accepts: Accepts,
        deadline: float,
    ) -> Reply:
        """Run a call that changes the session without a number, if the client accepts its ETag.

        args: makes the arguments from the session as it is when earlier calls have ended.
        Raises HttpProblem 412 if the ETag is not accepted.
        """

        asked, n = Write(op, {}, tensors, 0, op), 0

        async def running(session: Session, give_up: float) -> Reply:
            nonlocal n
            if await self._has_made(session, n, asked):
                about = await self._copies.call(session, f"{self._kind.name}.describe", {}, NO_TENSORS, give_up)
                return session.noted(about)
            await self._copies.check_accepted(session, accepts)
            write = replace(asked, args=args(session))
            try:
                return await self._changes.apply(session, write, 0, give_up)
            except Taken:
                n = session.entry + 1
                raise

        return await self.kept_running(self._in_turn(session, deadline, running))

    async def alone(self, session: Session, deadline: float, work: Callable[[Session, float], Awaitable[T]]) -> T:
        """Run `work` between the calls of the session, which is in a worker then.

        Its arguments are the session, and the deadline as a value of time.monotonic(). It runs also if the session lost
        changes and no client knows.
        """
        return await self.kept_running(self._in_turn(session, deadline, work, tells=False))

    async def _has_made(self, session: Session, n: int, write: Write) -> bool:
        """Whether another process has repeated the call, whose entry `n` it had."""
        if not n:
            return False
        assert self._stored is not None
        return await self._stored.journal.has_entry(session, n, write.mark) is not False

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
        reads: bool = False,
    ) -> T:
        """Run `work` when all earlier calls of the session have ended; its last argument is the deadline, a value of
        time.monotonic(). reads: it changes nothing."""
        give_up = time.monotonic() + deadline
        patience.DEADLINE.set(give_up)
        taken: Taken | None = None
        try:
            for _ in range(TAKEOVERS):
                if self._held.get(session.key) is not session:  # parked, closed, or taken over by another process
                    session = await self._find(session.tenant, session.id, reads)
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
                    taken = fenced if isinstance(fenced, Taken) else taken
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
            await self._changes.make_sure(session, session.unsure)
        if not session.worker:
            assert self._rebuilder is not None
            await self._rebuilder.rebuilt(session, give_up, None)
        if session.rolled_back and tells:
            assert self._stored is not None
            with contextlib.suppress(StorageFull):  # another process that loads the session then tells it again
                try:
                    await self._stored.told(session)
                except Fenced:  # or an earlier try took effect, which this process does not know: say it once too often
                    await self._forget(session)
            session.rolled_back = False
            raise HttpProblem(
                "rolled-back",
                f"the worker of the session ended; it goes on from its checkpoint at step {session.step}",
                step=session.step,
                durable_step=session.durable_step,
                **session.position,
            )

    # Workers

    async def forget(self, session: Session) -> None:
        """Forget the session, which another process has taken over or deleted.

        A running call or a rebuilding finds out by itself; it must not meet a second rebuilding in the same worker.
        """
        is_free = not session.turn.locked() and (session.rebuilding is None or session.rebuilding.done())
        if is_free and self._held.get(session.key) is session:
            async with session.turn:
                await self._forget(session)

    async def _forget(self, session: Session) -> None:
        await self._copies.drop(session)
        if self._held.get(session.key) is session:
            del self._held[session.key]

    async def kept_running(self, work: Coroutine[Any, Any, T]) -> T:
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

    async def handed_over(
        self, making: Coroutine[Any, Any, T], left: Callable[[T], Coroutine[Any, Any, None]] | None
    ) -> T:
        """The result of `making`, which goes on if the caller is cancelled; then `left` gets the result."""
        found: list[T] = []
        has_left = False

        async def kept() -> T:
            found.append(await making)
            if has_left and left is not None:
                await left(found[0])
            return found[0]

        try:
            return await self.kept_running(kept())
        except asyncio.CancelledError:
            has_left = True
            if found and left is not None:
                await self.kept_running(left(found[0]))
            raise


class _Sent:
    """The parts of a call's answer that have left: another try of the call must not send them again."""

    def __init__(self, write: Write) -> None:
        self._write, self._version, self._has_left = write, 0, False

    def of(self, session: Session) -> Write:
        """The call for the next try. Raises HttpProblem if parts have left that the session no longer gives."""
        if self._write.on_part is None:
            return self._write
        if not self._has_left:
            self._version = session.version
            return replace(self._write, on_part=self._part)
        if session.version != self._version:
            detail = "another process of the service changed the session while the answer was streamed"
            raise HttpProblem("no-capacity", f"{detail}; the call has not taken effect")
        return replace(self._write, on_part=None)

    def _part(self, result: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._has_left = True
        assert self._write.on_part is not None
        self._write.on_part(result, arrays)
