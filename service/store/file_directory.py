"""The directory of files that belongs to the database: both have its id, the directory in its marker.

It tells the directory from the empty one below a mount point, and from that of another store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from sqlalchemy import Connection, insert, select, update

from service.objects import DirectoryAway, Objects, UnusableStore
from service.objects.marker import MARKER
from service.store.errors import StorageFull, StorageUnavailable
from service.store.store import Store
from service.store.tables import checkpoints, datasets, facts, program_values, sessions

__all__ = ["adopt_directory", "directory_id", "take_directory", "why_unusable"]

NAME = "files"
"""The name of the id among the facts of the database."""

LOOKED_UP = 20  # files of each table
KEYS = (checkpoints.c.key, datasets.c.key, program_values.c.key, sessions.c.checkpoint)


def directory_id(connection: Connection) -> str | None:
    """The id of the directory that belongs to the database; None if none does yet."""
    return connection.execute(select(facts.c.value).where(facts.c.name == NAME)).scalar()


async def take_directory(store: Store, objects: Objects) -> None:
    """Use the directory for the files of the database from now on; a directory of a new store is made.

    Does nothing for a remote store. Raises UnusableStore if it is not the directory of this database; StorageError.
    """
    if objects.root is None:
        return
    if await store.read(directory_id) is None:
        if await asyncio.to_thread(objects.id) is None:
            await _check_files(store, objects)
        id = await asyncio.to_thread(objects.prepare)
        if not id:
            return  # the disk is full; the next start tries again
        try:
            await store.write(lambda connection: _set(connection, id))
        except StorageFull:
            return
    if (problem := await why_unusable(store, objects)) is not None:
        raise UnusableStore(str(problem))
    await asyncio.to_thread(objects.prepare)


async def adopt_directory(store: Store, objects: Objects) -> None:
    """Let the directory belong to the database in place of the one before. Raises StorageError."""
    if (id := await asyncio.to_thread(objects.id)) is not None:
        await store.write(lambda connection: _set(connection, id, replaces=True))


async def why_unusable(store: Store, objects: Objects) -> StorageUnavailable | None:
    """The reason why the directory does not have the files of the database; None if it has them.

    Raises StorageError if the database cannot be used, OSError.
    """
    if objects.root is None:
        return None
    id, known = await asyncio.to_thread(objects.id), await store.read(directory_id)
    if id is None:
        by_hand = f"; to use another directory with these files, write {known} to its file {MARKER}" if known else ""
        text = f"{DirectoryAway.text}: mount or restore {objects.root}{by_hand}"
        return StorageUnavailable(DirectoryAway.text, text)
    if id and known and id != known:
        text = f"{objects.root} is the directory of another store: its file {MARKER} has {id}, expected {known}"
        return StorageUnavailable("the directory of files is that of another store", text)
    return None


def _set(connection: Connection, id: str, replaces: bool = False) -> None:
    if directory_id(connection) is None:
        connection.execute(insert(facts).values(name=NAME, value=id))
    elif replaces:
        connection.execute(update(facts).where(facts.c.name == NAME).values(value=id))


async def _check_files(store: Store, objects: Objects) -> None:
    """Raises UnusableStore for a directory that has none of the files that the database names."""
    keys = await store.read(lambda connection: list(_named(connection)))
    if keys and not await asyncio.to_thread(lambda: any(_has(objects, key) for key in keys)):
        raise UnusableStore(f"{objects.root} has none of the files that the database names, such as {keys[0]}")


def _named(connection: Connection) -> Iterator[str]:
    for key in KEYS:
        yield from connection.scalars(select(key).where(key.is_not(None)).limit(LOOKED_UP))


def _has(objects: Objects, key: str) -> bool:
    path = objects.local_path(key)
    return path is not None and path.exists()
