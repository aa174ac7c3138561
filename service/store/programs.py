"""Registered programs. A program's id is the digest of its content, so the same program of a tenant has one id."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, bindparam, delete, func, insert, literal, select

from core.ir.lru import LRU
from service.store.errors import StorageUnavailable
from service.store.program_text import ProgramText, program_id
from service.store.store import Store
from service.store.tables import programs

__all__ = ["ProgramStore", "StoredProgram", "TooManyPrograms"]

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
    .where(OF_TENANT & (programs.c.id > bindparam("after")))
    .order_by(programs.c.id)
    .limit(bindparam("most"))
)
COUNT = select(func.count()).select_from(programs).where(OF_TENANT)


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A registered program. created: seconds since 1970.

    text: its document as JSON. signature: its inputs and size as JSON.
    """

    id: str
    text: bytes
    signature: bytes
    created: float

    @property
    def program(self) -> ProgramText:
        return ProgramText(self.id, self.text)


class TooManyPrograms(Exception):
    """The tenant has as many programs as the settings allow."""


def _has_id(text: bytes, id: str) -> bool:
    """Whether the program in `text` has this id."""
    try:
        return program_id(orjson.loads(text)) == id
    except orjson.JSONDecodeError:
        return False


class ProgramStore:
    """The registered programs of all tenants."""

    def __init__(self, store: Store, limit: int) -> None:
        """limit: the most programs of a tenant; `limit_of` may be replaced by limits of each tenant."""
        self._store = store
        self.limit_of: Callable[[str], float] = lambda tenant: limit
        self._recent = self._empty_cache()
        self._generation = store.generation

    @staticmethod
    def _empty_cache() -> LRU[StoredProgram]:
        return LRU(RECENT_BYTES, lambda stored: len(stored.text) + len(stored.signature), at_least=1)

    async def put(self, tenant: str, program: ProgramText, signature: bytes) -> tuple[StoredProgram, bool]:
        """Store a program; (stored program, whether it is new). Raises TooManyPrograms, StorageError."""

        def work(connection: Connection) -> tuple[StoredProgram, bool]:
            known = _get(connection, tenant, program.id)
            if known is not None:
                return known, False
            if connection.execute(COUNT, {"tenant": tenant}).scalar_one() >= self.limit_of(tenant):
                raise TooManyPrograms
            created = time.time()
            row = {"id": program.id, "document": program.text, "signature": signature, "created": created}
            connection.execute(insert(programs), {"tenant": tenant, **row})
            return StoredProgram(program.id, program.text, signature, created), True

        return await self._store.write(work)

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
        """(up to `size` programs with ids greater than `after`, in the order of ids and without their documents;
        whether there are more).

        A page ends early when its signatures exceed PAGE_BYTES.
        """
        return await self._store.read(lambda connection: _page(connection, tenant, after, size))

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a program; whether it existed. Raises StorageError."""
        given = {"tenant": tenant, "id": id}
        found = await self._store.write(
            lambda connection: connection.execute(delete(programs).where(ONE), given).rowcount > 0
        )
        self._recent.pop((tenant, id))
        return found


def _get(connection: Connection, tenant: str, id: str) -> StoredProgram | None:
    row = connection.execute(GET, {"tenant": tenant, "id": id}).first()
    if row is None:
        return None
    found = StoredProgram(*row)
    if len(found.text) <= CHECKED_BYTES and not _has_id(found.text, id):
        raise StorageUnavailable("the stored program is damaged: its content does not have its id")
    return found


def _exists(connection: Connection, tenant: str, id: str) -> bool:
    return connection.execute(EXISTS, {"tenant": tenant, "id": id}).first() is not None


def _page(connection: Connection, tenant: str, after: str, size: int) -> tuple[list[StoredProgram], bool]:
    page: list[StoredProgram] = []
    room = PAGE_BYTES
    for row in connection.execute(PAGE, {"tenant": tenant, "after": after, "most": size + 1}):
        if len(page) == size or room < 0:
            return page, True
        page.append(StoredProgram(*row))
        room -= len(page[-1].signature)
    return page, False
