"""All rows of a tenant, found by the schema: a table with tenants that is added later is erased too.

Rows without a tenant belong to a row with one: those whose primary key begins with `session` or `job`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Row, Table, delete, select, tuple_

from service.store.tables import metadata

__all__ = ["KEPT", "ORDER", "first_rows", "parts_of", "remove", "remove_parts"]

KEPT = frozenset({"audit", "keys", "tenants", "usage"})
"""Tables whose rows stay when their tenant is erased: they account for keys, usage and changes."""

FIRST = ("jobs", "operations", "sessions")
"""Tables to erase before the others: while their rows exist, jobs, operations and sessions store more rows."""

ORDER: tuple[Table, ...] = tuple(
    sorted(
        (table for name, table in metadata.tables.items() if "tenant" in table.c and name not in KEPT),
        key=lambda table: (table.name not in FIRST, table.name),
    )
)
"""The tables to erase, in order."""


def parts_of(table: Table) -> list[Column[Any]]:
    """The columns of tables without a tenant that name rows of `table`: `journal.session` and others of `sessions`."""
    first = [next(iter(each.primary_key)) for each in metadata.tables.values() if "tenant" not in each.c]
    return [column for column in first if f"{column.name}s" == table.name]


def first_rows(connection: Connection, table: Table, tenant: str, size: int, columns: Sequence[str]) -> list[Row[Any]]:
    """Up to `size` rows of the tenant, with their primary keys and these columns."""
    named = {each.name: each for each in (*table.primary_key, *(table.c[name] for name in columns))}
    return list(connection.execute(select(*named.values()).where(table.c.tenant == tenant).limit(size)))


def remove_parts(connection: Connection, table: Table, rows: Sequence[Row[Any]], size: int) -> int:
    """Delete up to `size` rows of each other table that belong to `rows`; the number of deleted ones."""
    count = 0
    for column in parts_of(table):
        key = list(column.table.primary_key)
        some = select(*key).where(column.in_([row.id for row in rows])).limit(size)
        count += connection.execute(delete(column.table).where(tuple_(*key).in_(some))).rowcount
    return count


def remove(connection: Connection, table: Table, rows: Sequence[Row[Any]]) -> None:
    """Delete `rows`, and what belongs to them."""
    for column in parts_of(table):
        connection.execute(delete(column.table).where(column.in_([row.id for row in rows])))
    key = list(table.primary_key)
    values = [tuple(row._mapping[column.name] for column in key) for row in rows]
    if len(key) == 1:  # SQLite compares no tuple of one
        connection.execute(delete(table).where(key[0].in_([value for (value,) in values])))
    else:
        connection.execute(delete(table).where(tuple_(*key).in_(values)))
