"""The copies of sessions in workers: calls to them, their loss, and their deletion when they are out of date."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from service.engine import EngineError, RemoteError, Reply, WorkerLost
from service.engine.protocol import PartCallback
from service.http.entity_tags import Accepts
from service.http.worker_calls import Calls
from service.problems import HttpProblem, from_exception
from service.sessions.epoch import Fenced
from service.sessions.session import Kind, Session
from service.sessions.stored import StoredSessions

__all__ = ["DELETE_S", "MOST_DEATHS", "Copies"]

log = logging.getLogger("backpass.sessions")

MOST_DEATHS = 2  # of workers during one call that was not answered yet; then it is given up
DELETE_S = 10.0
LATER_S, AGAIN_S = 60.0, 1.0  # the deadline of each try to delete a copy, and the time between two


class Copies:
    """The copies of the sessions of one registry."""

    def __init__(self, kind: Kind, calls: Calls, stored: StoredSessions | None) -> None:
        self._kind, self._calls, self._stored = kind, calls, stored
        self._deleting: set[asyncio.Task[None]] = set()

    async def call(
        self,
        session: Session,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray],
        give_up: float,
        on_part: PartCallback | None = None,
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """Run `op` with the copy of the session in its worker. Raises EngineError.

        give_up: the deadline, a value of time.monotonic().
        """
        args = {**args, "id": session.handle}
        left = max(0.0, give_up - time.monotonic())
        try:
            return await self._calls.call(
                op, args, tensors, worker=session.worker, deadline=left, on_part=on_part, stop=stop
            )
        except WorkerLost as error:
            self.lose(session, error.reason)
            raise

    def told(self, session: Session, error: WorkerLost) -> HttpProblem:
        """The problem that tells a client that the worker of the session ended."""
        problem = from_exception(error)
        problem.extensions |= {self._kind.name: session.id, **session.position}
        return problem

    def given_up(self, session: Session, error: WorkerLost) -> HttpProblem:
        """The problem for a call during which `MOST_DEATHS` workers ended: another try could end the next one."""
        problem = self.told(session, error)
        problem.detail = (
            f"the call ended each worker that ran it, and was given up; the {self._kind.name} is as before the call"
        )
        problem.retryable = False
        return problem

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
        """Delete the copy of the session, which is not needed or differs from the stored one."""
        worker, session.worker, session.unsure = session.worker, "", None
        if worker:
            await self.delete(session.handle, worker)

    async def delete(self, handle: str, worker: str) -> None:
        """Delete a copy from its worker.

        Returns after `DELETE_S` at the latest. While the worker runs something else, the copy stays.
        """
        task = asyncio.create_task(self._deleted(handle, worker))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        await asyncio.wait({task}, timeout=DELETE_S)

    async def _deleted(self, handle: str, worker: str) -> None:
        while True:
            try:
                await self._calls.call(f"{self._kind.name}.delete", {"id": handle}, worker=worker, deadline=LATER_S)
            except (WorkerLost, RemoteError):
                return  # the copy has ended with its worker
            except EngineError as error:
                log.info("a copy of the session %s stays in worker %s for now: %s", handle, worker, error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    # Other processes of the service

    async def is_current(self, session: Session) -> bool:
        """Whether no other process of the service has taken the session over."""
        owning = self.asked(session)
        return owning is None or await owning

    async def check_accepted(self, session: Session, accepts: Accepts) -> None:
        """Raises HttpProblem 412 unless `accepts` holds for the ETag of the session, and Fenced if another process has
        taken it over."""
        if not accepts(session.etag):
            await self.check_current(session)
            detail = f"the {self._kind.name} has changed since the version in If-Match"
            raise HttpProblem("precondition-failed", detail, **session.position, etag=session.etag)

    async def check_current(self, session: Session) -> None:
        """Raises Fenced if another process of the service has taken the session over."""
        if not await self.is_current(session):
            raise Fenced

    def asked(self, session: Session) -> asyncio.Task[bool] | None:
        """The running question to the store whether this process still holds the session; None if no other could."""
        if self._stored is None or not session.is_stored or not self._stored.is_shared:
            return None
        return asyncio.create_task(self._stored.owns(session))
