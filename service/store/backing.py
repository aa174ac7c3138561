"""A database behind the store: `Embedded` (SQLite in the data directory) or `Server` (PostgreSQL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from service.store.errors import StorageError

__all__ = ["Backing", "Engines"]


@dataclass(frozen=True, slots=True)
class Engines:
    """Connections to an open database. reader: they cannot write."""

    writer: Engine
    reader: Engine

    def dispose(self) -> None:
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
