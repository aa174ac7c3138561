"""The store of the first version, `programs.sqlite`: its programs move into the tables once."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine

from service.store.sqlite_file import LOGS, damaged, is_damage
from service.store.tables import programs

__all__ = ["OLD_FILE", "import_programs"]

OLD_FILE = "programs.sqlite"
SUFFIX = ".imported"
TENANT = "local"  # of a service without keys
COLUMNS = ("id", "document", "signature", "created")
BATCH = 100


def import_programs(engine: Engine, directory: Path) -> int:
    """Import the programs of an old file in the directory, and rename the file; how many there were.

    They belong to the tenant of services without keys. Does nothing without such a file. A start that ends between the
    import and the new name imports again, without effect. Raises StoreDamaged, OSError, errors of the databases.
    """
    file = directory / OLD_FILE
    if not file.is_file():
        return 0
    from sqlalchemy.dialects import postgresql, sqlite  # imported here, because few stores have such a file

    if engine.dialect.name == "sqlite":
        insert = sqlite.insert(programs).on_conflict_do_nothing()
    else:
        insert = postgresql.insert(programs).on_conflict_do_nothing()  # type: ignore[assignment]
    count = 0
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as old, engine.begin() as new:
            _check(old, file)
            rows = old.execute(f"SELECT {', '.join(COLUMNS)} FROM programs")
            while batch := rows.fetchmany(BATCH):
                values = [{"tenant": TENANT, **dict(zip(COLUMNS, row, strict=True))} for row in batch]
                new.execute(insert, values)
                count += len(batch)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise damaged(file, f"is damaged: {error}") from error
        raise
    os.replace(file, directory / f"{OLD_FILE}{SUFFIX}")
    for log in LOGS:
        (directory / f"{OLD_FILE}{log}").unlink(missing_ok=True)
    return count


def _check(old: sqlite3.Connection, file: Path) -> None:
    """Raises StoreDamaged, or sqlite3.DatabaseError for a malformed file."""
    columns = tuple(row[1] for row in old.execute("PRAGMA table_info(programs)"))
    if columns != COLUMNS:
        raise damaged(file, f"has a table of programs with the columns {', '.join(columns) or '(none)'}")
    result = old.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise damaged(file, f"is damaged: {' '.join(result.split())}")
