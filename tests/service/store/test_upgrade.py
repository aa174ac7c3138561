"""Data directories of earlier versions, and the migrations that bring their tables to this version."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, select, text

from service.store.errors import StoreDamaged
from service.store.first_version import OLD_FILE
from service.store.migrate import SCRIPTS, migrate, revisions, upgrade
from service.store.program_text import program_id
from service.store.programs import ProgramStore
from service.store.sqlite_file import FILE
from service.store.store import Store
from service.store.tables import metadata, programs
from tests.paths import ROOT
from tests.service.store.keep import FIXTURES
from tests.service.store.rows import all_rows, fill

SCHEMAS = sorted(each.name for each in FIXTURES.glob("schema_*"))
OLD = FIXTURES / "programs_sqlite" / OLD_FILE


def old_programs() -> dict[str, tuple[bytes, bytes, float]]:
    with closing(sqlite3.connect(f"{OLD.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        return {row[0]: row[1:] for row in db.execute("SELECT id, document, signature, created FROM programs")}


def stored_programs(connection: Connection) -> dict[tuple[str, str], tuple[bytes, bytes, float]]:
    return {(row[0], row[1]): tuple(row[2:]) for row in connection.execute(select(programs))}


def test_the_names_of_the_files_are_the_schema_versions_of_alembic():
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))

    assert revisions() == [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()][::-1]


@pytest.mark.parametrize("new", [True, False])
def test_a_store_with_new_or_current_tables_opens_without_alembic(tmp_path, new):
    if not new:
        first = Store(tmp_path)
        first.open_now()
        first.close_now()
    opened = "import sys; from pathlib import Path; from service.store.store import Store; "
    opened += f"Store(Path({str(tmp_path)!r})).open_now(); print('alembic' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", opened], cwd=ROOT, capture_output=True, text=True, timeout=180)

    assert done.stdout == "False\n", done.stderr


def test_the_migrations_make_the_tables_of_a_new_store(tmp_path):
    """If this fails after a change of service/store/tables.py, the change needs a migration."""
    engines = {name: create_engine(f"sqlite:///{tmp_path / name}") for name in ("migrated", "new")}
    with engines["migrated"].begin() as connection:
        migrate(connection)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    upgrade(engines["new"])

    statements = []
    for engine in engines.values():
        with engine.connect() as connection:
            columns = "SELECT t.name, c.* FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c"
            indexes = "SELECT name, sql FROM sqlite_master WHERE type = 'index'"
            statements += [  # not the text of a table, which differs for an added column
                sorted(map(tuple, connection.execute(text(query))), key=str) for query in (columns, indexes)
            ]
            statements.append(connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all())
        engine.dispose()
    assert statements[:3] == statements[3:]


def test_the_tables_of_a_new_store_are_those_of_this_version(store):
    def differences(connection: Connection) -> list[Any]:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    assert asyncio.run(store.read(differences)) == []


def test_rows_of_every_table_are_read_as_they_were_written(make_store):
    store = make_store()
    asyncio.run(store.write(fill))
    before = asyncio.run(store.read(all_rows))
    store.close_now()

    assert asyncio.run(make_store().read(all_rows)) == before
    assert {len(rows) for rows in before.values()} == {3}
    assert before["journal"][0]["entry"] == (b"bytes 0 of entry" + bytes([0, 255])).hex()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_database_of_every_released_schema_is_opened_with_all_rows(tmp_path, name):
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.executescript((FIXTURES / name / "backpass.sql").read_text())
    before = json.loads((FIXTURES / name / "rows.json").read_text())

    store = Store(tmp_path)
    store.open_now()
    found = asyncio.run(store.read(all_rows))
    store.close_now()

    assert before
    for table, rows in before.items():
        for old, new in zip(rows, found[table], strict=True):
            assert old.items() <= new.items()


def test_there_is_a_fixture_of_this_schema(store):
    revision = asyncio.run(store.read(lambda c: c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()))
    assert f"schema_{revision}" in SCHEMAS, "run python -m tests.service.store.keep"


def test_programs_of_the_first_version_are_imported_once(make_store, tmp_path):
    """The file is that of a real service; it registered two programs besides those of the documentation."""
    expected = {("local", id): row for id, row in old_programs().items()}
    directory = tmp_path / "data"
    directory.mkdir()
    shutil.copy(OLD, directory)

    store = make_store()
    assert asyncio.run(store.read(stored_programs)) == expected
    assert len(expected) == 4
    for id, (document, _, _) in old_programs().items():
        found = asyncio.run(ProgramStore(store, 10).get("local", id))
        assert found is not None
        assert found.text == document
    assert asyncio.run(ProgramStore(store, 10).delete("local", next(iter(old_programs()))))
    store.close_now()

    assert not (directory / OLD_FILE).exists()
    assert (directory / f"{OLD_FILE}.imported").read_bytes() == OLD.read_bytes()
    assert len(asyncio.run(make_store().read(stored_programs))) == 3


def test_an_import_that_was_cut_off_is_repeated_without_effect(make_store, tmp_path):
    directory = tmp_path / "data"
    directory.mkdir()
    for _ in range(2):
        shutil.copy(OLD, directory)
        store = make_store()
        assert len(asyncio.run(store.read(stored_programs))) == 4
        store.close_now()


def test_committed_programs_in_the_log_of_the_first_version_are_imported(tmp_path):
    id = program_id({"blocks": []})
    with closing(sqlite3.connect(tmp_path / "other", isolation_level=None)) as old:
        old.execute("PRAGMA journal_mode=WAL")
        old.execute(
            "CREATE TABLE programs (id TEXT PRIMARY KEY, document BLOB NOT NULL, signature BLOB NOT NULL,"
            " created REAL NOT NULL) WITHOUT ROWID"
        )
        old.execute("INSERT INTO programs VALUES (?, ?, ?, ?)", (id, b'{"blocks":[]}', b"{}", 1.0))
        for end in ("", "-wal"):
            shutil.copy(tmp_path / f"other{end}", tmp_path / f"{OLD_FILE}{end}")

    store = Store(tmp_path)
    store.open_now()
    assert asyncio.run(store.read(stored_programs)) == {("local", id): (b'{"blocks":[]}', b"{}", 1.0)}
    store.close_now()
    assert not list(tmp_path.glob(f"{OLD_FILE}-*"))


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 100, None])
def test_a_damaged_file_of_the_first_version_is_refused_and_kept(tmp_path, content):
    damaged = OLD.read_bytes()[:8192] + b"\xa5" * 8192 if content is None else content
    (tmp_path / OLD_FILE).write_bytes(damaged)

    for _ in range(2):
        with pytest.raises(StoreDamaged, match=OLD_FILE):
            Store(tmp_path).open_now()
        assert (tmp_path / OLD_FILE).read_bytes() == damaged
