"""The sessions and tapes of a service: list them, find a session again, delete a tape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backpass_client.connection import Service, quoted
from backpass_client.sessions import Session

__all__ = ["Sessions", "Tapes"]


class Sessions:
    """The sessions of a service; `service.sessions`. `service.create_session` opens one."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def get(self, id: str) -> Session:
        """The session with this id, such as one of an earlier process. Raises Refused (not-found, gone)."""
        return Session(self._service, id)

    def list(self) -> Iterator[Session]:
        """The open and lost sessions, page by page; `said` of each has its state, its step and its program."""
        return (Session(self._service, each) for each in self._service.entries("/v1/sessions", "sessions"))


class Tapes:
    """The tapes of a service; `service.tapes`. `Tape` opens one.

    A tape belongs to the process that opened it, so that there are no objects to find: each is its view.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def list(self) -> Iterator[dict[str, Any]]:
        """The views of the open and lost tapes, page by page: id, state, mode, ops, bytes, lease, ..."""
        return self._service.entries("/v1/tapes", "tapes")

    def delete(self, id: str) -> None:
        """Delete a tape, such as one that a process left behind. Raises Refused (not-found)."""
        self._service.call("DELETE", f"/v1/tapes/{quoted(id)}")
