"""The part of the registry of sessions that jobs use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from service.engine import Reply
from service.http.tensor_payloads import Answer
from service.sessions.session import Session

__all__ = ["Sessions"]


class Sessions(Protocol):
    """The sessions of the service. See `SessionRegistry` for the methods."""

    async def find(self, tenant: str, id: str) -> Session: ...

    def held(self, tenant: str, id: str) -> Session | None: ...

    async def save(self, session: Session, deadline: float) -> None: ...

    write: Callable[..., Awaitable[tuple[Answer, bool]]]
    read: Callable[..., Awaitable[Reply]]
