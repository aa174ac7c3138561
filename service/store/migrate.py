"""Migrations: they bring the tables of an older store to those of this version."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text

from service.store.tables import metadata

__all__ = ["UnknownSchema", "differing_table", "migrate", "revisions", "upgrade"]

SCRIPTS = Path(__file__).parent / "migrations"
LOCK = 0x62706173  # of PostgreSQL, so that two services that start do not both create the tables

VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""The table in which alembic keeps the schema version, as alembic itself creates it."""

_alone = threading.Lock()  # alembic keeps the context of a migration in its module


class UnknownSchema(Exception):
    """The database does not have tables that this version can bring to its own. `str` ends a sentence."""


def upgrade(engine: Engine) -> None:
    """Create the tables in an empty database, or migrate those of an older version; nothing if they are current.

    All or nothing, in one transaction. Raises UnknownSchema, and errors of the database.
    """
    if engine.dialect.name == "postgresql":  # sees what another service did while this one waited for the lock
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    with _alone, engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        found = _revision(connection)
        known = revisions()
        if found is not None and found not in known:
            raise UnknownSchema(f"has schema version {found}, but this version of Backpass reads up to {known[-1]}")
        if found is None:
            _create(connection, known[-1])
        elif found != known[-1]:
            migrate(connection)
        if (differing := differing_table(connection)) is not None:
            name, columns = differing
            raise UnknownSchema(f"has a table {name} with the columns {', '.join(sorted(columns)) or '(none)'}")


def revisions() -> list[str]:
    """All schema versions, the oldest first, from the names of their files: alembic takes long to load."""
    return sorted(path.name[1:5] for path in (SCRIPTS / "versions").glob("v[0-9][0-9][0-9][0-9]_*.py"))


def _create(connection: Connection, version: str) -> None:
    """Create the tables of the last schema version, which migrations of an empty database would make too."""
    metadata.create_all(connection)
    VERSION.create(connection, checkfirst=True)
    connection.execute(insert(VERSION).values(version_num=version))


def migrate(connection: Connection) -> None:
    """Bring the tables to the last schema version, whatever version they have."""
    from alembic import command  # imported here: a service with new or current tables starts without alembic
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    """The last migration of the database; None if it is empty. Raises UnknownSchema."""
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" in tables:
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if revision is not None:
            return str(revision)
    if taken := sorted(tables & set(metadata.tables)):
        raise UnknownSchema(f"has a table {taken[0]}, but no schema version: another application uses it")
    return None


def differing_table(connection: Connection) -> tuple[str, Collection[str]] | None:
    """A table whose columns are not those of this version, with its columns; None if there is none."""
    if connection.dialect.name == "sqlite":
        query = "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'"
    else:
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(text(query)):
        found.setdefault(table, set()).add(column)
    for name, expected in metadata.tables.items():
        if found.get(name, set()) != set(expected.columns.keys()):
            return name, found.get(name, set())
    return None
