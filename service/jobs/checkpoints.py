"""Checkpoints that a job makes of its session: files and rows like those that clients make."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager

import orjson
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.ids import Repeatable
from service.jobs.job import Job
from service.jobs.sessions import Sessions
from service.sessions.session import Session
from service.store.errors import StorageError
from service.store.store import Store
from service.store.tables import checkpoints, sessions

__all__ = ["Checkpointer", "checkpoint_id"]

log = logging.getLogger("backpass.jobs")

FOLDER = "checkpoints/client"


Room = Callable[[str, float], AbstractAsyncContextManager[Callable[[Connection], None]]]
"""Room for so many bytes of checkpoints of a tenant, while something is made. Raises HttpProblem 429 without it."""


def checkpoint_id(job: str, step: int) -> str:
    """The id of the checkpoint of a job after `step`."""
    return Repeatable(f"{job}\0{step}".encode()).made("ckp_")


class Checkpointer:
    """Saves sessions of jobs."""

    def __init__(
        self, store: Store, registry: Sessions, room: Room, sweep: Callable[[], Awaitable[None]], deadline: float
    ) -> None:
        """sweep: deletes expired checkpoints; it is also called from time to time."""
        self._store, self._registry, self._room, self._sweep = store, registry, room, sweep
        self._deadline = deadline

    async def __call__(self, session: Session, job: Job, step: int, replaces: Collection[int] = ()) -> str:
        """The id of the checkpoint of `job` after `step`, which is made once.

        replaces: steps of earlier checkpoints of the job, which expire when this one is made.
        Raises HttpProblem 429 if its tenant has no room for it, EngineError, StorageError.
        """
        id = checkpoint_id(job.id, step)
        replaced = [checkpoint_id(job.id, each) for each in replaces]

        def known(connection: Connection) -> tuple[bool, bytes | None]:
            made = connection.execute(select(checkpoints.c.id).where(checkpoints.c.id == id)).first()
            text = connection.execute(select(sessions.c.document).where(sessions.c.id == session.id)).scalar()
            return made is not None, text

        exists, text = await self._store.read(known)
        if exists:
            return id
        async with self._room(job.tenant, session.about["bytes"]) as check:
            await self._made(session, job, step, id, replaced, text, check)
        if replaced:
            try:  # a job with many steps would fill the quota and the disk until the next sweep
                await self._sweep()
            except (StorageError, OSError) as error:
                log.info("replaced checkpoints of job %s are not deleted yet: %s", job.id, error)
        return id

    async def _made(
        self,
        session: Session,
        job: Job,
        step: int,
        id: str,
        replaced: Collection[str],
        text: bytes | None,
        check: Callable[[Connection], None],
    ) -> None:
        key = f"{FOLDER}/{id[4:]}.safetensors"
        args = {"key": key, "about": {} if text is None else {"program": text.decode()}}
        reply = await self._registry.read(session, "session.save", args, {}, self._deadline)
        shown = {name: session.about.get(name) for name in ("loss", "targets", "optimizer")}
        row = {
            "id": id,
            "tenant": job.tenant,
            "session": session.id,
            "program_id": session.program_id,
            "name": f"{job.spec.name or job.id} step {step}"[:128],
            "kind": "client",
            "step": reply.result["step"],
            "key": key,
            "size": reply.result["size"],
            "sha256": reply.result["sha256"],
            "about": orjson.dumps({"labels": {"job": job.id}, "resumable": True, **shown}).decode(),
            "created": time.time(),
            "expires": None,
        }

        def adding(connection: Connection) -> None:
            connection.execute(insert(checkpoints).values(row))
            check(connection)
            if replaced:
                old = checkpoints.c.id.in_(replaced) & (checkpoints.c.tenant == job.tenant)
                connection.execute(update(checkpoints).where(old).values(expires=row["created"]))

        with contextlib.suppress(IntegrityError):  # the process that ran the job before has made it meanwhile
            await self._store.write(adding)
