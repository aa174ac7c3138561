"""The open sessions as the service knows them: in which worker each lives, and what it has answered.

The arrays are in the workers. Calls of one session run one at a time, in the order in which they came; they are not
cancelled when a client goes away, because the answer is kept for the client's next try.
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
from service.sessions.session import SESSIONS, Kind, Session
from service.settings import Settings

__all__ = ["SessionRegistry", "Write"]

REMEMBERED = 1000  # closed sessions whose end can still be told
SWEEP_S = 5.0
DELETE_S = 10.0

T = TypeVar("T")
Tensors = Mapping[str, np.ndarray]
Render = Callable[[Reply], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Write:
    """A call that changes a session. seq None: the next one, whatever it is. sent: what kind of request, with what."""

    op: str
    args: dict[str, Any]
    tensors: Tensors
    seq: int | None
    sent: str
    body: Body | None = None

    @property
    def digest(self) -> str:
        """The same for the same request sent twice."""
        return self.sent if self.body is None else f"{self.sent} {self.body.digest}"

    async def hash(self) -> None:
        """Have the digest worked out: by a thread if that takes long, else as soon as this task waits for something,
        which is the worker."""
        if self.body is not None and len(self.body.raw) > THREAD_BYTES:
            await asyncio.to_thread(lambda: self.digest)
        else:
            asyncio.get_running_loop().call_soon(lambda: self.digest)


class SessionRegistry:
    """All sessions of one service, or all tapes: what is said of sessions here holds for any `Kind`."""

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

    def page(self, after: str, size: int) -> list[Session]:
        """Up to `size` sessions with ids behind `after`, in the order of ids."""
        return [self._sessions[id] for id in sorted(self._sessions) if id > after][:size]

    def uses_program(self, program_id: str) -> list[str]:
        """The ids of the living sessions of a program."""
        return [s.id for s in self._sessions.values() if s.program_id == program_id and s.lost is None]

    # Opening and closing

    async def open(
        self,
        args: dict[str, Any],
        tensors: Tensors,
        *,
        program: tuple[str, dict[str, Any]] | None = None,
        lease_s: float,
        deadline: float,
        about: dict[str, Any],
    ) -> Session:
        """A new session in the worker that is free. program: its id and document, if it is of one.

        Raises HttpProblem 429 when there are too many, EngineError.
        """
        await self._sweep()
        living = sum(1 for session in self._sessions.values() if session.lost is None)
        if living + self._opening >= getattr(self._settings, self._kind.plural):
            raise HttpProblem(
                "quota-exceeded", f"{living} {self._kind.plural} are open, which is the limit; delete some"
            )
        id = self._kind.prefix + b32encode(secrets.token_bytes(17)).decode().lower()[:26]

        async def opened() -> Session:
            self._opening += 1
            try:
                reply = await self._create({**args, "id": id}, tensors, program, deadline)
                session = self._kind.entry(
                    id, program[0] if program else "", reply.worker, lease_s, {**about, "bytes": reply.result["bytes"]}
                )
                self._sessions[id] = session
                if all(worker.id != reply.worker for worker in self._calls.engine.workers()):
                    session.lost = "it ended"  # between its answer and now
                return session
            finally:
                self._opening -= 1
                self._count()

        return await self._kept_running(opened())

    async def _create(
        self, args: dict[str, Any], tensors: Tensors, program: tuple[str, dict[str, Any]] | None, deadline: float
    ) -> Reply:
        op = f"{self._kind.name}.create"
        if program is None:
            return await self._calls.call(op, args, tensors, deadline=deadline)
        return await self._calls.with_program(op, *program, args, tensors, deadline=deadline)

    async def close(self, id: str, reason: str = "was deleted") -> None:
        """Release the session; fine for one that is closed already. Raises HttpProblem 404 for an unknown one."""
        if self._gone.get(id) is not None:
            return
        session = self.get(id)
        await self._kept_running(self._close(session, reason))

    async def _close(self, session: Session, reason: str) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        self._gone.put(session.id, reason)
        self._count()
        if session.lost is not None:
            return
        async with session.turn:  # a step that runs may end
            deadline = max(DELETE_S, self._settings.step_deadline)
            try:
                with contextlib.suppress(WorkerLost):
                    await self._calls.call(
                        f"{self._kind.name}.delete", {"id": session.id}, worker=session.worker, deadline=deadline
                    )
            except EngineError:
                self._gone.pop(session.id)  # the worker still holds it, so it counts
                self._sessions[session.id] = session
                raise

    async def watch(self) -> None:
        """Close, until cancelled, sessions that nobody uses any more. Run it as a task."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self._sweep()

    async def _sweep(self) -> None:
        for session in list(self._sessions.values()):
            if session.lease_left < 0 and not session.turn.locked() and not session.waiting:
                try:
                    await self._close(session, "expired, because it was not used for longer than its lease")
                except EngineError:
                    continue  # the worker is busy; next time

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
        """Run a call that leaves the session as it is. on_part: as of `Engine.call`."""

        async def running(give_up: float) -> Reply:
            reply = await self._call(session, op, args, tensors, give_up, on_part)
            session.adopt(reply.result)
            return reply

        return await self._kept_running(self._in_turn(session, deadline, running))

    async def write(self, session: Session, write: Write, deadline: float, render: Render) -> tuple[Answer, bool]:
        """Run a call that changes the session, once for each seq; the second value says whether this is a replay.

        Raises HttpProblem 409 for a seq that is not the next one and not a repetition; whatever `read` raises besides.
        A call that fails leaves session and seq as they were.
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

    async def replace(
        self, session: Session, tensors: Tensors, allowed: Callable[[str], bool], deadline: float
    ) -> Reply:
        """Put parameters in place, if the present ETag is `allowed`. Raises HttpProblem 412."""

        async def running(give_up: float) -> Reply:
            if not allowed(session.etag):
                detail = "the parameters have changed since the version in If-Match"
                raise HttpProblem("precondition-failed", detail, **session.position)
            session.unsure = (0, "")
            reply = await self._call(session, "session.put_parameters", {}, tensors, give_up)
            session.adopt(reply.result)
            return reply

        return await self._kept_running(self._in_turn(session, deadline, running))

    def _replayed(self, session: Session, seq: int, write: Write) -> Answer | None:
        """The stored answer to a repeated request; None for the next one in order. Raises HttpProblem 409."""
        if seq == session.seq + 1:
            return None
        if seq > session.seq:
            raise HttpProblem("sequence-gap", f"seq {seq} came, but {session.seq + 1} is next", **session.position)
        found = session.history.get(seq)
        if found is not None and found.digest == write.digest:
            if found.answer is not None:
                return found.answer
            detail = f"seq {seq} has taken effect, but its answer is not there any more"
        elif found is not None:
            detail = f"seq {seq} was used with another body"
        else:
            detail = f"seq {seq} is too long ago to compare its body"
        raise HttpProblem("sequence-conflict", detail, **session.position)

    async def _in_turn(self, session: Session, deadline: float, work: Callable[[float], Awaitable[T]]) -> T:
        """What `work` returns, once the session is free for it; it is given the value of time.monotonic() at which
        `deadline` seconds are over."""
        give_up = time.monotonic() + deadline
        if session.waiting > self._settings.session_pipeline:
            raise QueueFull(f"{session.waiting - 1} calls of this {self._kind.name} are waiting already")
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
            self.get(session.id)  # it may have been closed meanwhile
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
        """Run `op` in the worker of the session; on failure note whether it may have taken effect all the same.

        give_up: a value of time.monotonic().
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
                session.unsure = None  # these come before anything is changed
            raise
        except DeadlineExceeded as error:
            if error.waited:
                session.unsure = None
            raise
        session.unsure = None
        return reply

    async def _make_sure(self, session: Session, seq: int, digest: str) -> None:
        """Ask the worker how far it came, because the last call, of that seq and digest, left that open."""
        before, give_up = session.seq, time.monotonic() + self._settings.step_deadline
        reply = await self._call(session, f"{self._kind.name}.describe", {}, NO_TENSORS, give_up)
        session.adopt(reply.result)
        if session.seq != before:
            session.history.add(seq, digest, None)

    async def _kept_running(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which goes on when the caller is cancelled."""
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
