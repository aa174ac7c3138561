"""The copy of a session in a worker, which is deleted when it is not that of the session any more."""

from __future__ import annotations

import contextlib

from service.engine import EngineError
from service.http.worker_calls import Calls
from service.sessions.session import Kind, Session

__all__ = ["DELETE_S", "delete_copy"]

DELETE_S = 10.0


async def delete_copy(calls: Calls, kind: Kind, session: Session, worker: str) -> None:
    """Delete the worker's copy of the session. It stays if the worker runs something else for longer than `DELETE_S`,
    and has ended with a worker that ended."""
    with contextlib.suppress(EngineError):
        await calls.call(f"{kind.name}.delete", {"id": session.handle}, worker=worker, deadline=DELETE_S)
