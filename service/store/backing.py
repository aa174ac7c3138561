"""A database behind the store: `Embedded` (SQLite in the data directory) or `Server` (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from service.store.errors import StorageError

__all__ = ["Backing", "Engines"]


class Engines:
    """Connections to an open database. reader: they cannot write."""

    def __init__(self, writer: Engine, reader: Engine) -> None:
        self.writer, self.reader = writer, reader
        self._kept: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction on the only connection that writes, for one thread at a time.

        The connection stays open between transactions, because the pool takes a fifth of the time of a short one.
        """
        kept = self._kept or self.writer.connect()
        self._kept = None
        try:
            with kept.begin():
                yield kept
        except BaseException:
            kept.close()
            raise
        self._kept = kept

    def dispose(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self.reader.dispose()
        self.writer.dispose()


class Backing(Protocol):
    """Where the database is, and the meaning of its errors."""

    @property
    def is_sqlite(self) -> bool: ...

    def open(self, *, create: bool) -> Engines:
        """Open the database and bring its tables to this version. create: make one if there is none.

        Raises StorageError."""

    def loss(self) -> str | None:
        """The reason why the database is not the one that was opened last; None if it is."""

    def refusal(self, error: Exception) -> StorageError:
        """The refusal of a request because of an error of the database."""

    def retried(self, error: SQLAlchemyError) -> bool:
        """Whether the same transaction may succeed when it runs again: it met another one."""

    def probe(self, connection: Connection) -> None:
        """Fails if the database cannot be written."""

    def release(self) -> None:
        """Give up what `open` claimed. Safe to repeat."""
