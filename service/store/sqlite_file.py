"""The SQLite file of a store: created whole, checked when opened, and never replaced by a new one.

The journal is a write-ahead log, and the file is opened by the VFS `unix-excl`: one process holds it, its connections
share the index of the log on the heap. The usual VFS maps that index from a file, which a full disk can turn into a
signal and which cannot be created on one. Other processes ask the owner: `service.store.admin`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from service.store.errors import StoreDamaged

__all__ = [
    "FILE",
    "SNAPSHOT",
    "check",
    "connect",
    "copy_database",
    "create_database",
    "damaged",
    "is_damage",
    "open_engine",
    "sync_directory",
]

FILE = "backpass.sqlite"
SNAPSHOT = "snapshot-"  # the beginning of the names of copies for backups
LOGS = ("-wal", "-journal")
APPLICATION = 0x62706173
LAYOUT = 2
"""`user_version` of the file. The version of the tables is that of their last migration."""

MAGIC = b"SQLite format 3\x00"
REMEDY = "restore it from a backup, or move it away to start with an empty store"
LOG_BYTES = 64 * 2**20  # the log is cut to this size when a large transaction is over
NO_CHECKPOINT_ON_CLOSE = 1006  # SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE
PAGE_BYTES = 8192  # of a new database: journals hold tensors, which take fewer and larger pages than 4 KiB ones
COPY_PAGES = 2048  # of a copy, between two chances of other threads


def connect(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time. An existing file is not created again.

    immutable: read the file without its log; no file is created or changed.
    """
    how = "mode=ro&immutable=1" if immutable else "mode=rw&vfs=unix-excl"
    name = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(name, uri=True, check_same_thread=False, isolation_level=None, timeout=5.0)


def open_engine(path: Path, *, size: int, query_only: bool = False, log: bool = True) -> Engine:
    """An engine of at most `size` connections to the file. query_only: they cannot write. log: write ahead."""

    def opened() -> sqlite3.Connection:
        connection = connect(path)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # without effect on a database that has pages
            connection.execute(f"PRAGMA journal_mode = {'WAL' if log else 'MEMORY'}")
            connection.execute("PRAGMA synchronous = FULL")  # an acknowledged write survives a power failure
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            if query_only:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=opened, poolclass=QueuePool, pool_size=size, max_overflow=0)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # not by way of SQLAlchemy, which takes 20 us for a statement
        connection.connection.driver_connection.execute("BEGIN")  # type: ignore[union-attr]

    return engine


def create_database(path: Path, define: Callable[[Engine], None]) -> None:
    """Create the file. It appears whole or not at all.

    define: called with an engine, to create the tables. Raises OSError or an error of SQLite.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    new.touch(0o600)
    engine = open_engine(new, size=1, log=False)
    try:
        define(engine)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
            connection.exec_driver_sql(f"PRAGMA user_version = {LAYOUT}")
            connection.commit()
    finally:
        engine.dispose()
    os.rename(new, path)
    sync_directory(path.parent)


def check(path: Path) -> None:
    """Check the form and structure of the file, which reads all of it. A damaged file stays unchanged.

    Raises StoreDamaged; OSError or sqlite3.Error if the file cannot be read.
    """
    logs = [log for log in (path.with_name(path.name + end) for end in LOGS) if log.exists()]
    if not path.exists() and logs:
        raise damaged(path, f"is missing, but {logs[0].name} is there")
    if path.is_dir():
        raise damaged(path, "is a directory, not a file")
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if not head:
        raise damaged(path, "is empty: the store that was here is lost")
    if head != MAGIC or path.stat().st_size < 512:
        raise damaged(path, "is not a SQLite database")
    try:
        with closing(connect(path, immutable=not any(log.stat().st_size for log in logs))) as db:
            try:
                _check(db, path)
            except (StoreDamaged, sqlite3.DatabaseError):
                if (set_option := getattr(db, "setconfig", None)) is not None:  # from Python 3.12 on
                    set_option(NO_CHECKPOINT_ON_CLOSE, True)  # do not copy the log into a damaged file
                raise
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise damaged(path, f"is damaged: {error}") from error
        raise


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Raises StoreDamaged, or sqlite3.DatabaseError for a malformed file."""
    found = {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")}
    if found["application_id"] != APPLICATION:
        raise damaged(path, "belongs to another application")
    if found["user_version"] != LAYOUT:
        text = f"has layout {found['user_version']}, but this version of Backpass reads layout {LAYOUT}"
        raise damaged(path, text)
    result = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise damaged(path, f"is damaged: {' '.join(result.split())}")


def copy_database(source: sqlite3.Connection, to: Path) -> None:
    """Write a consistent copy of the database to the new file `to`, synced. Writers go on meanwhile.

    source: a connection without a transaction. Raises OSError or sqlite3.Error.
    """
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(to, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = FULL")
        source.execute("BEGIN")
        try:
            source.execute("SELECT 1 FROM sqlite_master").fetchall()  # one snapshot, or each write would start it anew
            source.backup(copy, pages=COPY_PAGES)
        finally:
            source.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
    sync_directory(to.parent)


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite found the file malformed."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def damaged(path: Path | str, text: str, remedy: str = REMEDY) -> StoreDamaged:
    """The refusal of the store at `path`. text: the damage, as the end of a sentence."""
    return StoreDamaged("the store is damaged", f"the store {path} {text}; {remedy}")


def sync_directory(path: Path) -> None:
    """Make the names in the directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
