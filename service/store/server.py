"""PostgreSQL, which several services may share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from service.store.backing import Engines
from service.store.errors import SILENT, StorageError, StorageFull, StorageUnavailable, StoreDamaged
from service.store.first_version import import_programs
from service.store.migrate import UnknownSchema, upgrade
from service.store.sqlite_file import damaged

__all__ = ["Server"]

DRIVER = "postgresql+psycopg"
CONNECT = {
    "client_encoding": "utf8",  # whatever the environment or the database names
    "keepalives_idle": 10,  # a server that vanished is noticed, also by a connection that waits for its answer
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
}
IDLE_S = 8.0
"""Seconds after which the server ends a transaction whose process is stopped, and so the waiting of others for it."""

RETRIED = ("40001", "40P01", "23505")
"""Serialization failure, deadlock, and a row that another transaction has just added: the next try sees it."""
FULL = ("53100",)  # disk full
READ_ONLY = ("25006",)  # a standby, or a server that an operator or a provider has made read-only
REMEDY = "restore it from a backup, or set another BACKPASS_DATABASE_URL"


class Server:
    """One database of a PostgreSQL server."""

    is_sqlite = False

    def __init__(self, url: str, directory: Path | None, readers: int, writers: int) -> None:
        """url: of SQLAlchemy or of libpq. directory: of programs of an earlier version to import, if there are some.

        readers, writers: the most connections that read and that write."""
        self._url, self._directory, self._sizes = url, directory, (readers, writers)

    def open(self, *, create: bool) -> Engines:
        try:
            url = make_url(self._url)
            if url.get_backend_name() not in ("postgresql", "postgres"):
                text = f"BACKPASS_DATABASE_URL names {url.get_backend_name()}; expected postgresql or nothing"
                raise StorageUnavailable("the store cannot be used", text)
            url = url.set(drivername=DRIVER)
            readers, writers = self._sizes
            writer = create_engine(
                url,
                pool_size=writers,
                max_overflow=1,
                pool_pre_ping=True,
                isolation_level="SERIALIZABLE",  # as on SQLite: a transaction sees no other that runs beside it
                connect_args=CONNECT,
            )
            reading = create_engine(
                url,
                pool_size=readers,
                max_overflow=1,
                pool_pre_ping=True,
                isolation_level="REPEATABLE READ",
                connect_args=CONNECT,
            )
            reader = reading.execution_options(postgresql_readonly=True)
            for each in (writer, reading):
                _be_patient(each)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise StorageUnavailable("the store cannot be used", f"BACKPASS_DATABASE_URL: {error}") from error
        engines = Engines(writer, reader)
        try:
            _check_encoding(engines.writer)
            upgrade(engines.writer)
            if self._directory is not None:
                import_programs(engines.writer, self._directory)
        except UnknownSchema as error:
            engines.dispose()
            raise damaged(url.render_as_string(), str(error), REMEDY) from error
        except (OSError, SQLAlchemyError) as error:
            engines.dispose()
            raise self.refusal(error) from error
        except BaseException:
            engines.dispose()
            raise
        return engines

    def loss(self) -> str | None:
        return None  # a lost connection is opened again by the pool

    def refusal(self, error: Exception) -> StorageError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        state = getattr(cause, "sqlstate", None) or ""
        about = " ".join(str(cause).split())
        if state in FULL:
            return StorageFull("no space is left for stored data", f"no space is left for stored data: {about}")
        if state in READ_ONLY:
            return StorageUnavailable("the database takes no writes now", f"the database takes no writes now: {about}")
        if type(cause).__name__ == "Silent":  # its module needs psycopg, which may be missing
            return StorageUnavailable(SILENT, f"{SILENT}: {about}")
        if state.startswith("XX"):
            return StoreDamaged("the store is damaged", f"the store is damaged: {about}")
        return StorageUnavailable("the database cannot be used now", f"the database cannot be used: {about}")

    def retried(self, error: SQLAlchemyError) -> bool:
        return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in RETRIED

    def probe(self, connection: Connection) -> None:
        connection.execute(text("UPDATE alembic_version SET version_num = version_num"))

    def release(self) -> None:
        pass


def _be_patient(engine: Engine) -> None:
    """Let the connections of `engine` wait for the server no longer than their uses may take."""
    from service.store.patient_connection import PatientConnection

    @event.listens_for(engine, "do_connect")
    def connected(dialect: Any, record: Any, args: Any, params: Any) -> Any:
        return PatientConnection.connect(*args, **params)

    @event.listens_for(engine, "connect")
    def opened(connection: Any, record: Any) -> None:
        before, connection.autocommit = connection.autocommit, True
        connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'")
        connection.autocommit = before


def _check_encoding(engine: Engine) -> None:
    """Raises StorageUnavailable if the encoding is not UTF8.

    LATIN1 and others lack characters; SQL_ASCII compares the limits of text columns with bytes, not characters.
    """
    with engine.connect() as connection:
        found = connection.execute(text("SHOW server_encoding")).scalar_one()
    if found != "UTF8":
        name = engine.url.database
        raise StorageUnavailable(
            "the store cannot be used",
            f"the database {name} has the encoding {found}; expected UTF8: create it with ENCODING 'UTF8' and "
            "TEMPLATE template0",
        )
