"""Registered programs. A program's id is the digest of its content, so the same program of a tenant has one id."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
from sqlalchemy import Connection, bindparam, delete, func, insert, literal, select

from core.ir.lru import LRU
from service.objects import Objects
from service.objects.copies import delete_copies
from service.store import program_values
from service.store.errors import StorageError, StorageUnavailable
from service.store.newest import Place
from service.store.program_text import ProgramText, program_id
from service.store.program_values import NewValues, StoredValues
from service.store.shared_files import keep_files, write_with_file
from service.store.store import Store
from service.store.tables import program_values as values_table
from service.store.tables import programs

__all__ = ["MissingValues", "ProgramStore", "StoredProgram", "TooManyPrograms"]

log = logging.getLogger("backpass.programs")

PAGE_BYTES = 2**20  # of the signatures on one page
RECENT_BYTES = 64 * 2**20  # of the programs to cache in memory
CHECKED_BYTES = 2**20  # of a program whose digest is checked when it is read: parsing a larger one delays requests

ROW = (programs.c.id, programs.c.document, programs.c.signature, programs.c.created)
OF_TENANT = programs.c.tenant == bindparam("tenant")
ONE = OF_TENANT & (programs.c.id == bindparam("id"))
GET = select(*ROW).where(ONE)
EXISTS = select(literal(1)).where(ONE)
PAGE = (
    select(programs.c.id, literal(b""), programs.c.signature, programs.c.created)
    .add_columns(values_table.c.key, values_table.c.sha256, values_table.c.size)
    .outerjoin(values_table, (values_table.c.tenant == programs.c.tenant) & (values_table.c.program == programs.c.id))
    .where(OF_TENANT)
    .limit(bindparam("most"))
)
COUNT = select(func.count()).select_from(programs).where(OF_TENANT)


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A registered program. created: seconds since 1970.

    text: its document as JSON. signature: its inputs and size as JSON. values: its initial values, if it has some.
    """

    id: str
    text: bytes
    signature: bytes
    created: float
    values: StoredValues | None = None

    @property
    def program(self) -> ProgramText:
        return ProgramText(self.id, self.text, None if self.values is None else self.values.sha256)


class TooManyPrograms(Exception):
    """The tenant has as many programs as the settings allow."""


class MissingValues(Exception):
    """The program names initial values, which are neither given nor stored."""


def _has_id(text: bytes, id: str) -> bool:
    """Whether the program in `text` has this id."""
    try:
        return program_id(orjson.loads(text)) == id
    except orjson.JSONDecodeError:
        return False


class ProgramStore:
    """The registered programs of all tenants."""

    def __init__(self, store: Store, limit: int, objects: Objects | None = None, directory: Path | None = None) -> None:
        """limit: the most programs of a tenant; `limit_of` may be replaced by limits of each tenant.

        objects: keeps initial values; without it programs have none. directory: of this process, with the copies of
            files of a remote store.
        """
        self._store, self._objects, self._directory = store, objects, directory
        self.limit_of: Callable[[str], float] = lambda tenant: limit
        self._recent = self._empty_cache()
        self._generation = store.generation

    @staticmethod
    def _empty_cache() -> LRU[StoredProgram]:
        return LRU(RECENT_BYTES, lambda stored: len(stored.text) + len(stored.signature), at_least=1)

    async def put(
        self,
        tenant: str,
        program: ProgramText,
        signature: bytes,
        new: NewValues | None = None,
        check: Callable[[Connection], None] = lambda connection: None,
    ) -> tuple[StoredProgram, bool]:
        """Store a program; (stored program, whether it is new).

        new: the initial values that `program.values` names, unless another program of the tenant has them.
        check: refuses the values in the transaction of the program, when it is stored.
        Raises TooManyPrograms, MissingValues, StorageError, OSError.
        """
        if new is None:
            found = await self._store.write(lambda connection: self._insert(connection, tenant, program, signature))
            assert found is not None, "without a file the program can always be inserted"
            return found
        assert self._objects is not None
        values = new.stored
        insert = lambda connection: self._insert(connection, tenant, program, signature, values, check)
        return await write_with_file(self._store, self._objects, values.key, new.file, insert, self.collect)

    def _insert(
        self,
        connection: Connection,
        tenant: str,
        program: ProgramText,
        signature: bytes,
        values: StoredValues | None = None,
        check: Callable[[Connection], None] = lambda connection: None,
    ) -> tuple[StoredProgram, bool] | None:
        """The stored program, and whether it is new; None if the file of its values is not there."""
        if program.values is not None:
            keep_files(connection, values_table)
        known = _get(connection, tenant, program.id)
        if known is not None:
            return known, False
        if values is None and program.values is not None:
            values = program_values.with_sha256(connection, tenant, program.values)
            if values is None:
                raise MissingValues
        elif values is not None and self._objects is not None and not self._objects.exists(values.key):
            return None
        if connection.execute(COUNT, {"tenant": tenant}).scalar_one() >= self.limit_of(tenant):
            raise TooManyPrograms
        created = time.time()
        row = {"id": program.id, "document": program.text, "signature": signature, "created": created}
        connection.execute(insert(programs), {"tenant": tenant, **row})
        if values is not None:
            program_values.add(connection, tenant, program.id, values)
            check(connection)
        return StoredProgram(program.id, program.text, signature, created, values), True

    async def values_with(self, tenant: str, sha256: str) -> StoredValues | None:
        """The initial values with this digest that some program of the tenant has."""
        return await self._store.read(lambda connection: program_values.with_sha256(connection, tenant, sha256))

    async def get(self, tenant: str, id: str) -> StoredProgram | None:
        """The program with this id, or None. Recently used programs come from memory. Raises StorageError."""
        recent = self._recent_of(tenant, id)
        if recent is not None:
            # another service that shares the database may have deleted it
            if self._store.is_sqlite or await self._store.read(lambda connection: _exists(connection, tenant, id)):
                return recent
            self._recent.pop((tenant, id))
            return None
        found = await self._store.read(lambda connection: _get(connection, tenant, id))
        if found is not None:
            self._recent.put((tenant, id), found)
        return found

    def _recent_of(self, tenant: str, id: str) -> StoredProgram | None:
        if self._generation != self._store.generation:  # another database
            self._recent, self._generation = self._empty_cache(), self._store.generation
        return self._recent.get((tenant, id))

    async def page(self, tenant: str, after: str, size: int) -> tuple[list[StoredProgram], bool]:
        """(up to `size` programs from the page token `after` on, the newest first and without their documents; whether
        there are more).

        A page ends early when its signatures exceed PAGE_BYTES.
        """
        return await self._store.read(lambda connection: _page(connection, tenant, after, size))

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a program with its values; whether it existed. Raises StorageError."""
        given = {"tenant": tenant, "id": id}

        def work(connection: Connection) -> tuple[bool, str | None]:
            key = program_values.remove(connection, tenant, id)
            return connection.execute(delete(programs).where(ONE), given).rowcount > 0, key

        found, key = await self._store.write(work)
        self._recent.pop((tenant, id))
        if key is not None:
            await self.collect(key)
        return found

    def forget_recent(self) -> None:
        """Empty the cache of programs: an erasure deletes programs in the store without it."""
        self._recent = self._empty_cache()

    async def collect(self, key: str) -> None:
        """Delete the file `key` if no program names it. A failure is logged: the next start tries again."""
        assert self._objects is not None
        try:
            await self._store.write(program_values.collect(self._objects, key, lambda: self._forget(key)))
        except (StorageError, OSError) as error:
            log.warning("the file %s is not deleted: %s", key, error)

    def _forget(self, key: str) -> None:
        if self._directory is not None:
            delete_copies(self._directory, [key.rpartition("/")[2]])

    async def collect_all(self) -> None:
        """Delete all files of values without a row: their process died before it wrote the row, or after it deleted it.

        Failures are logged.
        """
        assert self._objects is not None
        objects = self._objects
        try:
            named = await self._store.read(program_values.keys)
            for key in await asyncio.to_thread(lambda: list(objects.keys(program_values.FOLDER))):
                if key not in named:
                    await self.collect(key)
        except (StorageError, OSError) as error:
            log.warning("files of values are not swept: %s", error)


def _get(connection: Connection, tenant: str, id: str) -> StoredProgram | None:
    row = connection.execute(GET, {"tenant": tenant, "id": id}).first()
    if row is None:
        return None
    found = StoredProgram(*row, program_values.known(connection, tenant, id))
    if len(found.text) <= CHECKED_BYTES and not _has_id(found.text, id):
        raise StorageUnavailable("the stored program is damaged: its content does not have its id")
    return found


def _exists(connection: Connection, tenant: str, id: str) -> bool:
    return connection.execute(EXISTS, {"tenant": tenant, "id": id}).first() is not None


def _page(connection: Connection, tenant: str, after: str, size: int) -> tuple[list[StoredProgram], bool]:
    page: list[StoredProgram] = []
    room = PAGE_BYTES
    found = Place.of(after).query(PAGE, programs)
    for row in connection.execute(found, {"tenant": tenant, "most": size + 1}):
        if len(page) == size or room < 0:
            return page, True
        values = None if row.key is None else StoredValues(row.key, row.sha256, row.size, b"")
        page.append(StoredProgram(row.id, b"", row.signature, row.created, values))
        room -= len(page[-1].signature)
    return page, False
