"""The registry of open sessions: the worker of each session, and its stored answers.

The arrays are in the workers. The calls of one session run one at a time, in order of arrival. A call goes on when its
client disconnects, because the client can fetch the stored answer with its next try.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from base64 import b32encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from core.ir.lru import LRU
from service.engine import DeadlineExceeded, Engine, EngineError, QueueFull, RemoteError, Reply, WorkerLost
from service.engine.protocol import NO_TENSORS, PartCallback
from service.http.request_body import Body
from service.http.tensor_payloads import THREAD_BYTES, Answer
from service.http.worker_calls import Calls
from service.observability.metrics import Metrics
from service.problems import HttpProblem, from_exception
from service.sessions.replay import MAX_BYTES_OF_ALL, History, stored_answers
from service.sessions.session import SESSIONS, Kind, Session
from service.settings import Settings

__all__ = ["SessionRegistry", "Write"]

REMEMBERED = 1000  # closed sessions to remember: error 410 gives the reason of closing
SWEEP_S = 5.0
DELETE_S = 10.0

T = TypeVar("T")
Tensors = Mapping[str, np.ndarray]
Render = Callable[[Reply], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Write:
    """A call that changes a session.

    seq:  the sequence number; None for the next one.
    sent: the kind of request and its parameters, as a part of the digest.
    """

    op: str
    args: dict[str, Any]
    tensors: Tensors
    seq: int | None
    sent: str
    body: Body | None = None

    @property
    def digest(self) -> str:
        """A digest of the request, equal for a request that is sent twice."""
        return self.sent if self.body is None else f"{self.sent} {self.body.digest}"

    async def hash(self) -> None:
        """Compute and cache the digest: in a thread if the body is large, else while this task waits for the worker."""
        if self.body is not None and len(self.body.raw) > THREAD_BYTES:
            await asyncio.to_thread(lambda: self.digest)
        else:
            asyncio.get_running_loop().call_soon(lambda: self.digest)


class SessionRegistry:
    """All sessions of one service, or all of its tapes: here "session" means an object of the registry's `Kind`."""

    def __init__(
        self, settings: Settings, engine: Engine, metrics: Metrics | None = None, kind: Kind = SESSIONS
    ) -> None:
        self._kind = kind
        self._settings = settings
        self._calls = Calls(engine, metrics)
        self._metrics = metrics
        self._sessions: dict[str, Session] = {}
        self._opening = 0
        self._gone: LRU[str] = LRU(REMEMBERED)
        self._running: set[asyncio.Task[Any]] = set()
        self._answers = stored_answers(MAX_BYTES_OF_ALL)
        engine.on_worker_lost(self._worker_lost)

    # Finding

    def get(self, id: str) -> Session:
        """The open or lost session. Raises HttpProblem 404, or 410 for one that was closed."""
        session = self._sessions.get(id)
        if session is not None:
            return session
        reason = self._gone.get(id)
        if reason is not None:
            raise HttpProblem("gone", f"the {self._kind.name} {reason}")
        raise HttpProblem("not-found", f"there is no {self._kind.name} with this id")

    def is_open(self, id: str) -> bool:
        """Whether there is a session with this id that is not lost."""
        session = self._sessions.get(id)
        return session is not None and session.lost is None

    def page(self, after: str, size: int) -> list[Session]:
        """Up to `size` sessions with ids greater than `after`, in the order of ids."""
        return [self._sessions[id] for id in sorted(self._sessions) if id > after][:size]

    def uses_program(self, program_id: str) -> list[str]:
        """The ids of the sessions of a program, without lost ones."""
        return [s.id for s in self._sessions.values() if s.program_id == program_id and s.lost is None]

    # Opening and closing

    async def open(
        self,
        args: dict[str, Any],
        tensors: Tensors,
        *,
        program: tuple[str, bytes] | None = None,
        lease_s: float,
        deadline: float,
        about: dict[str, Any],
        id: str | None = None,
    ) -> Session:
        """Open a session in any idle worker.

        id: of a closed or lost session, which the new one replaces; by default a fresh one.
        program: (id, JSON text) of the program to train; None for a tape.
        Raises HttpProblem 429 at the limit of open sessions, or EngineError.
        """
        await self._sweep()
        living = sum(1 for session in self._sessions.values() if session.lost is None)
        limit = getattr(self._settings, self._kind.plural)
        if living + self._opening >= limit:
            raise HttpProblem(
                "quota-exceeded", f"{living} of {limit} {self._kind.plural} are already open; delete one first"
            )
        if id is None:
            id = self._kind.prefix + b32encode(secrets.token_bytes(17)).decode().lower()[:26]

        async def opened() -> Session:
            self._opening += 1
            try:
                reply = await self._create({**args, "id": id}, tensors, program, deadline)
                session = self._kind.entry(
                    id, program[0] if program else "", reply.worker, lease_s, {**about, "bytes": reply.result["bytes"]}
                )
                session.history = History(self._answers)
                self._sessions[id] = session
                self._gone.pop(id)
                if all(worker.id != reply.worker for worker in self._calls.engine.workers()):
                    session.lost = "it ended"  # after its answer, so `_worker_lost` did not know the session yet
                return session
            finally:
                self._opening -= 1
                self._count()

        return await self._kept_running(opened())

    async def _create(
        self, args: dict[str, Any], tensors: Tensors, program: tuple[str, bytes] | None, deadline: float
    ) -> Reply:
        op = f"{self._kind.name}.create"
        if program is None:
            return await self._calls.call(op, args, tensors, deadline=deadline)
        return await self._calls.with_program(op, *program, args, tensors, deadline=deadline)

    async def close(self, id: str, reason: str = "was deleted") -> None:
        """Close the session; does nothing if it is closed already. Raises HttpProblem 404 if it never existed."""
        if self._gone.get(id) is not None:
            return
        session = self.get(id)
        await self._kept_running(self._close(session, reason))

    async def _close(self, session: Session, reason: str) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        self._gone.put(session.id, reason)
        session.history.clear()
        self._count()
        if session.lost is not None:
            return
        async with session.turn:  # waits for the running step
            deadline = max(DELETE_S, self._settings.step_deadline)
            try:
                with contextlib.suppress(WorkerLost):
                    await self._calls.call(
                        f"{self._kind.name}.delete", {"id": session.id}, worker=session.worker, deadline=deadline
                    )
            except EngineError:
                self._gone.pop(session.id)  # the worker still holds it, so it still counts as open
                self._sessions[session.id] = session
                raise

    async def watch(self) -> None:
        """Close sessions with an expired lease, until cancelled. Run it as a task."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self._sweep()

    async def _sweep(self) -> None:
        for session in list(self._sessions.values()):
            if session.lease_left < 0 and not session.turn.locked() and not session.waiting:
                try:
                    await self._close(session, "expired: nothing used it for longer than its lease")
                except EngineError:
                    continue  # the worker is busy: try again at the next sweep

    # Calling

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

        async def running(give_up: float) -> Reply:
            reply = await self._call(session, op, args, tensors, give_up, on_part)
            session.adopt(reply.result)
            return reply

        return await self._kept_running(self._in_turn(session, deadline, running))

    async def write(self, session: Session, write: Write, deadline: float, render: Render) -> tuple[Answer, bool]:
        """Run a call that changes the session, once for each seq; (answer, whether it is a replayed one).

        Raises HttpProblem 409 for a seq that is neither the next one nor a repetition, and the errors of `read`.
        A failed call changes neither the session nor its seq.
        """

        async def running(give_up: float) -> tuple[Answer, bool]:
            seq = session.seq + 1 if write.seq is None else write.seq
            replayed = self._replayed(session, seq, write)
            if replayed is not None:
                return replayed, True
            await write.hash()
            session.unsure = (seq, "")
            try:
                reply = await self._call(session, write.op, {**write.args, "seq": seq}, write.tensors, give_up)
            except Exception:
                if session.unsure is not None:
                    session.unsure = (seq, write.digest)
                raise
            session.adopt(reply.result)
            answer = await render(reply)
            session.history.add(seq, write.digest, answer)
            return answer, False

        return await self._kept_running(self._in_turn(session, deadline, running))

    async def change(
        self,
        session: Session,
        op: str,
        args: Callable[[], dict[str, Any]],
        tensors: Tensors,
        allowed: Callable[[str], bool],
        deadline: float,
    ) -> Reply:
        """Run a call that changes the session without a number, if `allowed` accepts the present ETag.

        args: makes the arguments from the session as it is when earlier calls have ended.
        Raises HttpProblem 412 if the ETag is not accepted.
        """

        async def running(give_up: float) -> Reply:
            if not allowed(session.etag):
                detail = "the session has changed since the version in If-Match"
                raise HttpProblem("precondition-failed", detail, **session.position)
            found = args()
            session.unsure = (0, "")
            reply = await self._call(session, op, found, tensors, give_up)
            session.adopt(reply.result)
            return reply

        return await self._kept_running(self._in_turn(session, deadline, running))

    def _replayed(self, session: Session, seq: int, write: Write) -> Answer | None:
        """The stored answer to a repeated request; None if `seq` is the next one. Raises HttpProblem 409."""
        if seq == session.seq + 1:
            return None
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

    async def _in_turn(self, session: Session, deadline: float, work: Callable[[float], Awaitable[T]]) -> T:
        """Run `work` when all earlier calls of the session have ended; its argument is the deadline, a value of
        time.monotonic()."""
        give_up = time.monotonic() + deadline
        if session.waiting > self._settings.session_pipeline:
            raise QueueFull(f"{session.waiting - 1} calls of this {self._kind.name} are already waiting")
        session.used = time.monotonic()
        session.waiting += 1
        try:
            if session.turn.locked():
                async with asyncio.timeout(deadline):
                    await session.turn.acquire()
            else:
                await session.turn.acquire()
        except TimeoutError:
            session.waiting -= 1
            raise DeadlineExceeded(
                f"the deadline passed while earlier calls of the {self._kind.name} ran", waited=True
            ) from None
        try:
            self.get(session.id)  # raises if the session was closed meanwhile
            if session.lost is not None:
                raise HttpProblem(
                    "gone",
                    f"the {self._kind.name} was lost with its worker ({session.lost}); create a new one",
                    state="lost",
                    **session.position,
                )
            if session.unsure is not None:
                await self._make_sure(session, *session.unsure)
            return await work(give_up)
        finally:
            session.waiting -= 1
            session.turn.release()
            session.used = time.monotonic()

    async def _call(
        self,
        session: Session,
        op: str,
        args: dict[str, Any],
        tensors: Tensors,
        give_up: float,
        on_part: PartCallback | None = None,
    ) -> Reply:
        """Run `op` in the session's worker. `session.unsure` stays set if a failed call may have taken effect.

        give_up: the deadline, a value of time.monotonic().
        """
        args = {**args, "id": session.id}
        left = max(0.0, give_up - time.monotonic())
        try:
            reply = await self._calls.call(op, args, tensors, worker=session.worker, deadline=left, on_part=on_part)
        except WorkerLost as error:
            self._lose(session, error.reason)
            problem = from_exception(error)
            problem.extensions |= {self._kind.name: session.id, **session.position}
            raise problem from error
        except RemoteError as error:
            if error.kind in ("program", "execution"):
                session.unsure = None  # handlers raise these before they change the session
            raise
        except DeadlineExceeded as error:
            if error.waited:
                session.unsure = None
            raise
        session.unsure = None
        return reply

    async def _make_sure(self, session: Session, seq: int, digest: str) -> None:
        """Ask the worker whether the last call, with this seq and digest, took effect."""
        before, give_up = session.seq, time.monotonic() + self._settings.step_deadline
        reply = await self._call(session, f"{self._kind.name}.describe", {}, NO_TENSORS, give_up)
        session.adopt(reply.result)
        if session.seq != before:
            session.history.add(seq, digest, None)

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

    def _worker_lost(self, worker: str, reason: str) -> None:
        for session in self._sessions.values():
            if session.worker == worker:
                self._lose(session, reason)

    def _lose(self, session: Session, reason: str) -> None:
        if session.lost is None:
            session.lost = reason
            self._count()

    def _count(self) -> None:
        if self._metrics is None:
            return
        lost = sum(1 for session in self._sessions.values() if session.lost is not None)
        gauge = getattr(self._metrics, self._kind.plural)
        gauge.labels("open").set(len(self._sessions) - lost)
        gauge.labels("lost").set(lost)
