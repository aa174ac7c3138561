"""Rows for every table, made from the types of the columns."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Float, Integer, LargeBinary, MetaData, Table, insert, select

from service.store.program_text import ProgramText
from service.store.tables import metadata

__all__ = ["all_rows", "fill", "row_of"]

DOCUMENTS = [ProgramText.of({"blocks": [{"ops": [], "n": n}]}) for n in range(3)]


def fill(connection: Connection) -> None:
    """Write three rows into every table."""
    for table in metadata.sorted_tables:
        for n in range(3):
            row = row_of(table, n)
            if table.name == "programs":
                row |= {"id": DOCUMENTS[n].id, "document": DOCUMENTS[n].text, "tenant": "local"}
            connection.execute(insert(table), row)


def row_of(table: Table, n: int = 0) -> dict[str, Any]:
    """A row with a value in every column."""
    return {column.name: _value(column, n) for column in table.columns}


def _value(column: Any, n: int) -> Any:
    if isinstance(column.type, LargeBinary):
        return f"bytes {n} of {column.name}".encode() + bytes([0, 255])
    if isinstance(column.type, Float):
        return 1.7e9 + n
    if isinstance(column.type, Integer):
        return 2**40 + n if column.type.__class__.__name__ == "BigInteger" else 100 + n
    text = f"{column.name} ä {n}"
    return text[: column.type.length] if column.type.length else text


def all_rows(connection: Connection, tables: MetaData = metadata) -> dict[str, list[dict[str, Any]]]:
    """Table -> its rows in the order of the primary key; bytes as hexadecimal text."""
    found = {}
    for table in tables.sorted_tables:
        rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        found[table.name] = [
            {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()} for row in rows
        ]
    return found
