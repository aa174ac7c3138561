"""The creation of a session: in a worker, and in the store if it outlives the worker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from service.engine import RemoteError, Reply
from service.http.worker_calls import Calls
from service.sessions.copies import Copies
from service.sessions.entry import Entry
from service.sessions.epoch import Fenced
from service.sessions.places import Places
from service.sessions.saving import Saver
from service.sessions.session import Durability, Session
from service.sessions.stored import StoredSessions
from service.store.errors import StorageError

__all__ = ["Creation", "Creator", "Terms"]


@dataclass(frozen=True, slots=True)
class Creation:
    """The call that creates a session in a worker. program: (id, JSON text) of the program; None for a tape."""

    op: str
    args: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    program: tuple[str, bytes] | None

    @property
    def is_derived(self) -> bool:
        """Whether the values come from a file."""
        return not self.op.endswith(".create") or "values" in self.args


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a session lives, and what clients see of it. Members as of `Session`."""

    lease_s: float
    about: dict[str, Any]
    durability: Durability = "none"
    checkpoint_every: int = 100
    job: str | None = None


class Creator:
    """Creates the sessions of a registry."""

    def __init__(
        self,
        calls: Calls,
        copies: Copies,
        places: Places,
        saver: Saver,
        stored: StoredSessions | None,
        make_room: Callable[[None], Awaitable[bool]],
    ) -> None:
        """make_room: parks a session, so that a new one may fit into a worker; False if there is none."""
        self._calls, self._copies, self._places = calls, copies, places
        self._saver, self._stored, self._make_room = saver, stored, make_room

    async def create(self, creation: Creation, handle: str, deadline: float) -> Reply:
        """Create the session in a worker, and park others while it finds no memory. Raises EngineError."""
        args, give_up = {**creation.args, "id": handle}, time.monotonic() + deadline
        while True:
            limit = max(0.0, give_up - time.monotonic())
            try:
                if creation.program is None:
                    return await self._calls.call(creation.op, args, creation.tensors, deadline=limit)
                given = creation.op, *creation.program, args, creation.tensors
                return await self._calls.with_program(*given, deadline=limit)
            except RemoteError as error:
                if error.kind != "memory" or not await self._make_room(None):
                    raise

    async def store(self, session: Session, creation: Creation) -> None:
        """Store a session that a worker has just created; if that fails, it is in neither of them.

        Raises HttpProblem 429 if it would exceed the quota of its tenant, StorageError.
        """
        assert self._stored is not None and creation.program is not None
        op, args = creation.op, creation.args
        try:
            check = partial(self._places.check, session.tenant, size=session.about["bytes"])
            await self._stored.add(session, creation.program[1], op, args, Entry(op, {}, creation.tensors), check)
            if creation.is_derived:  # the file may be deleted
                await self._saver.save(session)
        except BaseException:
            if session.epoch:
                with contextlib.suppress(StorageError, Fenced):
                    await self._stored.remove(session)
            await self._copies.drop(session)
            raise
