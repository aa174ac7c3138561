"""The SQLite file of a store: created whole, checked when opened, and never replaced by a new one.

The journal is a rollback journal, not WAL: all committed data is in the one file, whose identity the owner can check,
and SQLite maps no shared memory, which a full disk turns into a signal.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from service.store.errors import StoreDamaged

__all__ = ["connect", "create_database", "damaged", "open_database"]

APPLICATION = 0x62706173
VERSION = 1
"""The version of the schema, `user_version` of the file; 0 in files written before versions were checked."""

COLUMNS = ("id", "document", "signature", "created")
SCHEMA = """
CREATE TABLE programs (
    id TEXT PRIMARY KEY,
    document BLOB NOT NULL,
    signature BLOB NOT NULL,
    created REAL NOT NULL
) WITHOUT ROWID
"""
MAGIC = b"SQLite format 3\x00"
REMEDY = "restore it from a backup, or move it away to start with an empty store"


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time. An existing file is not created again."""
    name = ":memory:" if path == ":memory:" else f"{Path(path).absolute().as_uri()}?mode=rw"
    return sqlite3.connect(name, uri=True, check_same_thread=False, isolation_level=None, timeout=5.0)


def create_database(path: Path) -> None:
    """Create the file with its schema. It appears whole or not at all. Raises OSError or sqlite3.Error."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    new.touch(0o600)
    db = connect(new)
    try:
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = FULL")
        define(db)
    finally:
        db.close()
    os.rename(new, path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def define(db: sqlite3.Connection) -> None:
    """Write the schema and its version into an empty database."""
    db.execute("BEGIN")
    db.execute(SCHEMA)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the file, after a check of its form and structure, which reads the whole file.

    Raises StoreDamaged; OSError or sqlite3.Error if the file cannot be read.
    """
    if path.is_dir():
        raise damaged(path, "is a directory, not a file")
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if not head:
        raise damaged(path, "is empty: the store that was here is lost")
    db: sqlite3.Connection | None = None
    try:
        if head != MAGIC or path.stat().st_size < 512:
            raise damaged(path, "is not a SQLite database")
        db = connect(path)
        _check(db, path)
        db.execute("PRAGMA journal_mode = TRUNCATE")
        db.execute("PRAGMA synchronous = FULL")  # a program answered with 201 survives a power failure
        return db
    except sqlite3.DatabaseError as error:
        _close(db)
        if is_damage(error):
            raise damaged(path, f"is damaged: {error}") from error
        raise
    except StoreDamaged:
        _close(db)
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite found the file malformed."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Raises StoreDamaged, or sqlite3.DatabaseError for a malformed file."""
    found = {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")}
    if found["application_id"] not in (0, APPLICATION):
        raise damaged(path, "belongs to another application")
    if found["user_version"] not in (0, VERSION):
        text = f"has schema version {found['user_version']}, but this version of Backpass reads version {VERSION}"
        raise damaged(path, text)
    columns = tuple(row[1] for row in db.execute("PRAGMA table_info(programs)"))
    if not columns:
        raise damaged(path, "has no table of programs")
    if columns != COLUMNS:
        raise damaged(path, f"has a table of programs with the columns {', '.join(columns)}")
    result = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise damaged(path, f"is damaged: {' '.join(result.split())}")


def damaged(path: Path, text: str) -> StoreDamaged:
    """The refusal of the store at `path`. text: the damage, as the end of a sentence."""
    return StoreDamaged("the store of programs is damaged", f"the store {path} {text}; {REMEDY}")


def _close(db: sqlite3.Connection | None) -> None:
    if db is not None:
        db.close()
