"""SQLite in a data directory that this process owns, or in a temporary one."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.store.backing import Engines
from service.store.directory import DataDirectory, refusal
from service.store.errors import StorageError, StorageFull, StorageUnavailable, StoreDamaged
from service.store.first_version import import_programs
from service.store.migrate import UnknownSchema, upgrade
from service.store.sqlite_file import (
    FILE,
    LAYOUT,
    LOGS,
    SNAPSHOT,
    check,
    create_database,
    damaged,
    is_damage,
    open_engine,
)

__all__ = ["Embedded"]


class Embedded:
    """The SQLite file of one data directory."""

    is_sqlite = True

    def __init__(self, directory: Path | None, readers: int) -> None:
        """directory: created if missing; None for a temporary one. readers: connections that read."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="backpass-")
            directory = Path(self._temporary.name)
        self._directory = DataDirectory(directory)
        self._readers = readers

    @property
    def path(self) -> Path:
        return self._directory.path

    def open(self, *, create: bool) -> Engines:
        file = self.path / FILE
        if not create and not file.exists():
            raise StorageUnavailable(
                "the data directory is gone or has no store",
                f"{file} is gone; restart the service to begin with an empty store",
            )
        self._directory.claim()
        try:
            if not file.exists() and not any((self.path / f"{FILE}{log}").exists() for log in LOGS):
                create_database(file, upgrade)
            check(file)
            for left in self.path.glob(f"{SNAPSHOT}*"):  # by a backup that died
                left.unlink(missing_ok=True)
            engines = Engines(open_engine(file, size=1), open_engine(file, size=self._readers, query_only=True))
            try:
                upgrade(engines.writer)
                import_programs(engines.writer, self.path)
                with engines.reader.connect() as connection:  # makes the log
                    connection.exec_driver_sql("SELECT 1 FROM programs").fetchall()
                self._directory.watch(FILE)
                self._directory.watch(f"{FILE}-wal")
            except BaseException:
                engines.dispose()
                raise
        except UnknownSchema as error:
            raise damaged(file, str(error)) from error
        except (OSError, SQLAlchemyError, sqlite3.Error) as error:
            raise self.refusal(error) from error
        return engines

    def loss(self) -> str | None:
        return self._directory.loss()

    def refusal(self, error: Exception) -> StorageError:
        """SQLite does not report the cause of a failed write, so a write to another file of the directory asks for
        it."""
        if isinstance(error, OSError):
            return refusal(error, self.path)
        cause = error.orig if isinstance(error, DBAPIError) else error
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            return StorageFull("no space is left in the data directory")
        if is_damage(cause):
            return StoreDamaged(f"the store is damaged: {cause}")
        if isinstance(cause, sqlite3.OperationalError):
            file = self.path / FILE
            refused = self._directory.trial(file.stat().st_size if file.is_file() else 0)
            if refused is not None:
                return refusal(refused, self.path)
        return StorageUnavailable(f"the store cannot be used: {cause}")

    def retried(self, error: SQLAlchemyError) -> bool:
        return False  # one thread writes

    def probe(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA user_version = {LAYOUT}")

    def release(self) -> None:
        self._directory.release()
        if self._temporary is not None:
            self._temporary.cleanup()
