"""Rebuilding of a session in a worker: from its checkpoint or its creation, then all calls of its journal in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from service.engine import DeadlineExceeded, RemoteError, Reply, WorkerLost
from service.engine.protocol import NO_TENSORS
from service.http.codec import CODEC
from service.http.worker_calls import ANSWER_BYTES, Calls
from service.ids import random_id
from service.problems import HttpProblem
from service.sessions.answer import written
from service.sessions.copies import MOST_DEATHS, Copies
from service.sessions.entry import Entry, ended_as
from service.sessions.epoch import Fenced
from service.sessions.replay import MAX_ANSWERS
from service.sessions.session import Session
from service.sessions.stored import StoredSessions
from service.settings import Settings
from service.store import patience

__all__ = ["STILL_STORED", "Rebuilder"]

log = logging.getLogger("backpass.sessions")

MOST_DEATHS_OF_KNOWN = 10  # of workers, one after the other, by a call that once ended well; then the session is lost
BY_CHANCE = ("deadline_exceeded", "canceled", "out_of_memory")  # reasons to stop that depend on more than the values
MORE_TIME, LEAST_S = 4.0, 60.0  # a repeated call gets so many times the time that it had, and seconds in addition
TRIES = 5  # to rebuild a session whose workers end meanwhile


class _Voided(Exception):
    """An entry was deleted after it ran in a worker."""


class _Unequal(Exception):
    """A repeated call did not do what it did before."""


class Rebuilder:
    """Rebuilds sessions. `rebuild` runs in a task of its own, which goes on when the waiting call gives up."""

    def __init__(
        self,
        calls: Calls,
        copies: Copies,
        stored: StoredSessions,
        settings: Settings,
        make_room: Callable[[Session], Awaitable[bool]],
    ) -> None:
        """make_room: parks another session, so that this one may fit into a worker; False if there is none."""
        self._calls, self._copies, self._stored = calls, copies, stored
        self._settings, self._make_room = settings, make_room

    async def rebuilt(self, session: Session, give_up: float, pending: int | None) -> tuple[int, Reply | None]:
        """Wait until the session is rebuilt; (number, reply) of its last call. pending: as of `rebuild`.

        If the deadline passes, the rebuilding goes on.
        """
        task = session.rebuilding
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = session.rebuilding = asyncio.create_task(self.rebuild(session, pending, give_up))
        await asyncio.wait({task}, timeout=max(0.0, give_up - time.monotonic()))
        if not task.done():
            again = "" if pending is None else f"; {STILL_STORED}"
            raise HttpProblem("recovering", f"the session is being rebuilt from its checkpoint and journal{again}")
        session.rebuilding = None
        try:
            return task.result()
        except DeadlineExceeded as error:
            raise HttpProblem("recovering", f"the session could not be rebuilt yet: {error}") from error

    async def rebuild(self, session: Session, pending: int | None, give_up: float) -> tuple[int, Reply | None]:
        """(number, reply) of the session's last call; the reply is None if no call follows the checkpoint.

        pending: the entry of a call that waits for its answer until `give_up`, a value of time.monotonic(). If it ends
        several workers or does not end in time, its entry is deleted, and the returned number is smaller.
        Raises Fenced, StorageError, EngineError, or HttpProblem 410 if the session cannot be rebuilt.
        """
        ANSWER_BYTES.set(None)  # the calls of the journal had limits of their own
        CODEC.set(None)
        patience.DEADLINE.set(None)  # the rebuilding goes on after the deadline of the call that begins it
        started = time.monotonic()
        for left in reversed(range(TRIES)):
            try:
                last = await self._try(session, None if pending is None else (pending, give_up))
            except WorkerLost as error:
                log.warning("session %s: a worker ended while it was rebuilt: %s", session.id, error.reason)
                n, deaths = session.deaths
                if deaths >= MOST_DEATHS and n == pending:
                    await self._stored.journal.void(session, n)
                elif deaths >= MOST_DEATHS_OF_KNOWN:
                    raise self._lost(session, f"call {n} of its journal ends every worker that runs it") from error
                elif not left:
                    raise
            except _Voided:
                continue
            except _Unequal as error:
                log.warning("session %s: %s", session.id, error)
            except FileNotFoundError as error:
                if await self._is_out_of_date(session):  # another process has saved the session
                    continue
                raise self._lost(session, "a file of its journal is missing") from error
            except RemoteError as error:
                if error.code in ("checkpoint_damaged", "checkpoint_missing"):
                    if await self._is_out_of_date(session):  # another process has replaced the file
                        continue
                    raise self._lost(session, error.message) from error
                if error.kind != "memory" or not left or not await self._make_room(session):
                    raise
            else:
                seconds = time.monotonic() - started
                log.info(
                    "session %s is rebuilt at step %d from %s and %d calls in %.3f s", session.id, session.step,
                    session.checkpoint or "its creation", last[0] - session.saved_entry, seconds,
                )  # fmt: skip
                if self._calls.metrics is not None:
                    self._calls.metrics.recovered(seconds, last[0] - session.saved_entry)
                return last
        raise DeadlineExceeded("several tries to rebuild the session failed", waited=True)

    async def _try(self, session: Session, pending: tuple[int, float] | None) -> tuple[int, Reply | None]:
        row = await self._stored.peek(session.tenant, session.id)
        if row is None or row.session.epoch != session.epoch:
            raise Fenced
        session.adopt_saved(row.session)  # a checkpoint may be stored although its writer got an error
        if session.void is not None:
            await self._stored.journal.void(session, session.void)
        if session.checkpoint is not None:
            op, args, tensors = "session.restore", {"key": session.checkpoint, "sha256": session.sha256}, NO_TENSORS
        else:
            op, args, tensors = row.op, row.args, (await self._stored.journal.creation(session)).tensors
        limit = self._settings.max_step_deadline
        handle = session.handle = f"{session.id}.{random_id()}"  # a worker may hold an older copy
        args = {**args, "id": handle}
        made = asyncio.create_task(
            self._calls.with_program(op, session.program_id, row.document, args, tensors, deadline=limit)
        )
        try:
            return await self._caught_up(session, await asyncio.shield(made), pending)
        except BaseException:
            await asyncio.wait({made})  # a worker may make the session although nobody waits for it any more
            if made.exception() is None:
                await self._copies.delete(handle, made.result().worker)
            raise

    async def _caught_up(
        self, session: Session, made: Reply, pending: tuple[int, float] | None
    ) -> tuple[int, Reply | None]:
        """Run the journal in the worker that has made the session; as `rebuild`."""
        reply: Reply | None = None
        done, position, optimizer = session.saved_entry, made.result, made.result.get("optimizer")
        _, last_seq = await self._stored.journal.last_entry(session)
        while page := await self._stored.journal.entries(session, done):
            for n, entry in page:
                try:
                    is_pending, left = False, MORE_TIME * entry.limit_s + LEAST_S
                    if pending is not None and n == pending[0]:
                        is_pending = True
                        left = max(0.0, pending[1] - time.monotonic())
                    found = await self._repeated(session, made.worker, n, entry, left)
                    await self._check_steps(session, n, entry, found, is_pending)
                except RemoteError as error:
                    if error.kind not in ("program", "execution"):
                        raise
                    await self._drop_failed(session, n, error)
                    continue
                except DeadlineExceeded as error:
                    if error.waited and not is_pending:
                        raise
                    await self._drop_endless(session, n, error)
                reply, done, position = found, n, found.result
                optimizer = position.get("optimizer", optimizer)
                if entry.seq > last_seq - MAX_ANSWERS and session.history.get(entry.seq) is None:
                    answer = None if entry.form is None else await written(found, entry.form)
                    session.history.add(entry.seq, entry.digest, answer)
        session.adopt(position if optimizer is None else {**position, "optimizer": optimizer})
        session.entry, session.worker = done, made.worker
        session.rolled_back = session.dirty
        return done, reply

    async def _repeated(self, session: Session, worker: str, n: int, entry: Entry, limit: float) -> Reply:
        args = {**entry.repeated_args, "id": session.handle}
        if entry.seq:
            args["seq"] = entry.seq
        try:
            reply = await self._calls.call(entry.op, args, entry.tensors, worker=worker, deadline=limit)
        except WorkerLost as error:
            before, deaths = session.deaths
            session.deaths = n, (deaths if before == n else 0) + error.began
            raise
        if session.deaths[0] == n:
            session.deaths = 0, 0
        reply.result.update(entry.stopped or {})
        reply.result["durable_step"] = reply.result["step"]
        return reply

    async def _check_steps(self, session: Session, n: int, entry: Entry, reply: Reply, is_pending: bool) -> None:
        """Compare the number of steps that a repeated call has taken with that of the call itself, if known.

        The entry gets the outcome and the position that were not known when it was stored.
        """
        stopped = reply.result.get("stopped")
        if stopped is not None and entry.stopped is None:
            if not is_pending and (n <= session.entry or stopped["code"] in BY_CHANCE):
                raise _Unequal(f"call {n} of the journal was stopped: {stopped['detail']}")
        elif entry.after is None or ended_as(entry, reply.result).after == entry.after:
            return
        await self._stored.journal.rewrite(session, n, ended_as(entry, reply.result), reply.result["step"])

    async def _drop_failed(self, session: Session, n: int, error: RemoteError) -> None:
        """Delete the last entry, a call that failed without an answer. Raises HttpProblem for any other entry."""
        last, _ = await self._stored.journal.last_entry(session)
        if n != last or n <= session.entry:
            raise self._lost(session, f"call {n} of its journal cannot be repeated: {error.message}")
        log.info("session %s: the last call of its journal had failed: %s", session.id, error.message)
        await self._stored.journal.void(session, n)

    async def _drop_endless(self, session: Session, n: int, error: DeadlineExceeded) -> None:
        """Delete the last entry, a call that does not end. Raises _Voided; DeadlineExceeded for any other entry."""
        last, _ = await self._stored.journal.last_entry(session)
        if n != last or n <= session.entry:
            raise error
        log.warning("session %s: the last call of its journal does not end, and is given up", session.id)
        await self._stored.journal.void(session, n)
        raise _Voided  # whether it has changed the worker's copy is not known

    async def _is_out_of_date(self, session: Session) -> bool:
        """Whether the session has another checkpoint by now. Raises Fenced if another process holds it."""
        row = await self._stored.peek(session.tenant, session.id)
        if row is None or row.session.epoch != session.epoch:
            raise Fenced
        return row.session.checkpoint != session.checkpoint

    def _lost(self, session: Session, reason: str) -> HttpProblem:
        """Mark the session as lost; the problem to answer with."""
        session.lost = reason
        log.error("session %s is lost: %s", session.id, reason)
        return HttpProblem("gone", f"the session is lost: {reason}", state="lost", **session.origin, **session.position)


STILL_STORED = "the journal has the call, which will run; if it has a seq, send it again to get its answer"
"""About a call whose entry is stored, but which no worker has run to its end yet."""
