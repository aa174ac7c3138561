"""The rows of checkpoints that clients made or uploaded. Their files are in the object store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update

from service.store.labelled import labelled_page
from service.store.newest import Place
from service.store.tables import checkpoints as table

__all__ = ["StoredCheckpoint", "add", "bytes_of", "change", "expired", "get", "known", "page", "remove"]

CLIENT = "client"
WIDTH = 500  # rows that one sweep deletes


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One checkpoint.

    session:    id of the session that was saved; None for an upload.
    program_id: of the program; "" for a file of parameters without a program.
    step:       updates of the session. key: of the file. size: of the file in bytes; sha256: in hexadecimal.
    about:      labels, and the settings to show to clients; see `service.checkpoints`.
    expires:    seconds since 1970, as `created`; None for never.
    """

    id: str
    session: str | None
    program_id: str
    name: str
    step: int
    key: str
    size: int
    sha256: str
    about: dict[str, Any]
    created: float
    expires: float | None


COLUMNS = [table.c[name] for name in StoredCheckpoint.__slots__]


def add(db: Connection, tenant: str, checkpoint: StoredCheckpoint) -> None:
    about = orjson.dumps(checkpoint.about).decode()
    db.execute(insert(table).values(**asdict(checkpoint) | {"about": about, "tenant": tenant, "kind": CLIENT}))


def get(db: Connection, tenant: str, id: str, now: float) -> StoredCheckpoint | None:
    """The checkpoint, unless it has expired."""
    row = db.execute(select(*COLUMNS).where(_alive(tenant, now), table.c.id == id)).first()
    return None if row is None else _of(row)


def page(
    db: Connection,
    tenant: str,
    after: str,
    size: int,
    now: float,
    session: str | None = None,
    labels: Sequence[str] = (),
) -> list[StoredCheckpoint]:
    """Up to `size` checkpoints from the page token `after` on, the newest first; of one session or of all.

    labels: that they have, as of `has_labels`.
    """

    def read(after: str, size: int) -> list[StoredCheckpoint]:
        found = Place.of(after).query(select(*COLUMNS).where(_alive(tenant, now)), table).limit(size)
        if session is not None:
            found = found.where(table.c.session == session)
        return [_of(row) for row in db.execute(found)]

    return labelled_page(read, lambda each: each.about["labels"], after, size, labels)


def change(db: Connection, tenant: str, checkpoint: StoredCheckpoint) -> None:
    """Store the name, `about` and the end of a checkpoint; nothing else of it changes."""
    about = orjson.dumps(checkpoint.about).decode()
    values = {"name": checkpoint.name, "about": about, "expires": checkpoint.expires}
    db.execute(update(table).where(_one(tenant, checkpoint.id)).values(**values))


def remove(db: Connection, tenant: str, id: str) -> str | None:
    """Delete a checkpoint; the key of its file, or None if there was none."""
    key = db.execute(select(table.c.key).where(_one(tenant, id))).scalar_one_or_none()
    db.execute(delete(table).where(_one(tenant, id)))
    return key


def expired(db: Connection, now: float) -> list[str]:
    """Delete checkpoints that have expired; the keys of their files."""
    old = and_(table.c.kind == CLIENT, table.c.expires <= now)
    rows = db.execute(select(table.c.tenant, table.c.id, table.c.key).where(old).limit(WIDTH)).all()
    for row in rows:
        db.execute(delete(table).where(_one(row.tenant, row.id)))
    return [row.key for row in rows]


def known(db: Connection, keys: Collection[str]) -> set[str]:
    """The keys among `keys` that belong to a checkpoint."""
    listed, found = list(keys), set()
    for begin in range(0, len(listed), WIDTH):
        found |= set(db.execute(select(table.c.key).where(table.c.key.in_(listed[begin : begin + WIDTH]))).scalars())
    return found


def bytes_of(db: Connection, tenant: str) -> int:
    """Bytes of the files of all checkpoints of a tenant."""
    total = select(func.coalesce(func.sum(table.c.size), 0)).where(table.c.tenant == tenant, table.c.kind == CLIENT)
    return int(db.execute(total).scalar_one())


def _one(tenant: str, id: str) -> ColumnElement[bool]:
    return and_(table.c.tenant == tenant, table.c.id == id, table.c.kind == CLIENT)


def _alive(tenant: str, now: float) -> ColumnElement[bool]:
    return and_(table.c.tenant == tenant, table.c.kind == CLIENT, or_(table.c.expires.is_(None), table.c.expires > now))


def _of(row: Any) -> StoredCheckpoint:
    return StoredCheckpoint(**dict(row._mapping) | {"about": orjson.loads(row.about)})
