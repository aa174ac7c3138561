"""The initial values of programs: a row for each program that has some, and the file that the row names.

Programs with equal values share a file, across tenants too (`service.store.shared_files`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from service.objects import Objects
from service.store.shared_files import order_deletion
from service.store.tables import program_values as table

__all__ = ["FOLDER", "NewValues", "StoredValues", "add", "collect", "keys", "known", "remove", "with_sha256"]

FOLDER = "values"


@dataclass(frozen=True, slots=True)
class StoredValues:
    """The initial values of a program.

    key: of the file, safetensors; sha256: of its content, in hexadecimal; size: of the file in bytes.
    tensors: JSON list with name, dtype, shape and bytes of each.
    """

    key: str
    sha256: str
    size: int
    tensors: bytes


COLUMNS = [table.c[name] for name in StoredValues.__slots__]


@dataclass(frozen=True, slots=True)
class NewValues:
    """Values to store, in a file that is complete and synced."""

    file: Path
    sha256: str
    size: int
    tensors: bytes

    @property
    def stored(self) -> StoredValues:
        return StoredValues(f"{FOLDER}/{self.sha256}.safetensors", self.sha256, self.size, self.tensors)


def known(connection: Connection, tenant: str, program: str) -> StoredValues | None:
    """The values of a program, if it has some."""
    row = connection.execute(select(*COLUMNS).where(table.c.tenant == tenant, table.c.program == program)).first()
    return None if row is None else StoredValues(*row)


def with_sha256(connection: Connection, tenant: str, sha256: str) -> StoredValues | None:
    """The values with this digest that some program of the tenant has."""
    found = select(*COLUMNS).where(table.c.tenant == tenant, table.c.sha256 == sha256).limit(1)
    row = connection.execute(found).first()
    return None if row is None else StoredValues(*row)


def add(connection: Connection, tenant: str, program: str, values: StoredValues) -> None:
    connection.execute(insert(table).values(tenant=tenant, program=program, **asdict(values)))


def remove(connection: Connection, tenant: str, program: str) -> str | None:
    """Delete the row; the key of its file, or None if there was no row."""
    found = known(connection, tenant, program)
    connection.execute(delete(table).where(table.c.tenant == tenant, table.c.program == program))
    return None if found is None else found.key


def collect(objects: Objects, key: str, forget: Callable[[], Any]) -> Callable[[Connection], None]:
    """A transaction that deletes the file `key` if no row names it. forget: also deletes its copies."""

    def work(connection: Connection) -> None:  # it changes no row: it may run twice
        order_deletion(connection, table)
        if not connection.execute(select(func.count()).select_from(table).where(table.c.key == key)).scalar_one():
            objects.delete(key)
            forget()

    return work


def keys(connection: Connection) -> set[str]:
    """The keys of all files that rows name."""
    return set(connection.execute(select(table.c.key).distinct()).scalars())
