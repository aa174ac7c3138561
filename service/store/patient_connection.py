"""A connection to PostgreSQL that gives up when the time of its use has passed."""

from __future__ import annotations

import time
from typing import Any

from psycopg import Connection, OperationalError
from psycopg.abc import PQGen
from psycopg.errors import ConnectionTimeout

from service.store import patience

__all__ = ["PatientConnection", "Silent"]

CONNECT_S = 5  # to open a connection, at most


class Silent(OperationalError):
    """The server has not answered in time.

    The connection is closed: a transaction whose COMMIT was not sent is undone.
    """


class PatientConnection(Connection[Any]):
    """Waits for the server as `patience.limited` allows."""

    @classmethod
    def connect(cls, conninfo: str = "", **params: Any) -> Any:
        now = patience.present()
        if now is not None and not now.left:
            raise Silent("the time to use the database has passed")
        params["connect_timeout"] = CONNECT_S if now is None else min(CONNECT_S, int(now.left) + 1)
        try:
            return super().connect(conninfo, **params)
        except ConnectionTimeout as error:
            raise Silent(str(error)) from error

    def wait(self, gen: PQGen[Any], *args: Any, **named: Any) -> Any:
        now = patience.present()
        if now is None:
            return super().wait(gen, *args, **named)
        try:
            return super().wait(_watched(gen, now), *args, **named)
        except Silent:
            self.close()
            raise


def _watched(gen: PQGen[Any], limit: patience.Patience) -> PQGen[Any]:
    """The exchange `gen` with the server. Raises Silent if no bytes move for too long, or at the end of the use.

    The driver asks for the next event each tenth of a second, also if there is none.
    """
    moved, ready = time.monotonic(), None
    while True:
        try:
            wanted = next(gen) if ready is None else gen.send(ready)
        except StopIteration as end:
            return end.value
        now = time.monotonic()
        if ready:
            moved = now
        if now - moved > patience.LONGEST_S or (limit.ends is not None and now > limit.ends):
            limit.is_over = True
            raise Silent("the server has not answered in time")
        ready = yield wanted
