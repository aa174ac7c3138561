"""A connection to PostgreSQL that gives up when the time of its use has passed."""

from __future__ import annotations

from typing import Any

from psycopg import Connection, OperationalError
from psycopg.abc import PQGen
from psycopg.errors import ConnectionTimeout

from service.store import patience

__all__ = ["PatientConnection", "Silent"]

LEAST_WAIT_S = 0.01
CONNECT_S = 5  # to open a connection, at most


class Silent(OperationalError):
    """The server has not answered in time. The connection is closed, so what was not committed never will be."""


class PatientConnection(Connection[Any]):
    """Waits for the server as `patience.limited` allows."""

    @classmethod
    def connect(cls, conninfo: str = "", **params: Any) -> Any:
        left = patience.left()
        if left == 0.0:
            raise Silent("the time to use the database has passed")
        params["connect_timeout"] = CONNECT_S if left is None else min(CONNECT_S, int(left) + 1)
        try:
            return super().connect(conninfo, **params)
        except ConnectionTimeout as error:
            raise Silent(str(error)) from error

    def wait(self, gen: PQGen[Any], *args: Any, **named: Any) -> Any:
        left = patience.left()
        if left is None:
            return super().wait(gen, *args, **named)
        try:
            return super().wait(gen, *args, **{**named, "timeout": max(LEAST_WAIT_S, left)})
        except OperationalError as error:
            if patience.left() or self.closed:
                raise
            self.close()
            raise Silent("the server has not answered in time") from error
