"""The rows of operations: calls that go on after their client got 202."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Select, and_, delete, func, insert, select, update

from service.store import presence
from service.store.newest import Place
from service.store.tables import operations

__all__ = [
    "RUNNING",
    "StoredOperation",
    "add",
    "ask_to_stop",
    "drop_running",
    "expired",
    "finish",
    "get",
    "going_on",
    "lose",
    "page",
    "remove",
    "running",
    "running_of",
]

RUNNING = "running"
ASKED = '{"stop": true}'
"""In the column `about` of a running operation: its process should stop it."""

WIDTH = 500  # rows that one sweep deletes


@dataclass(frozen=True, slots=True)
class StoredOperation:
    """One operation. kind: method and path of its request; answer: see `service.http.recorded`."""

    id: str
    kind: str
    state: str
    status: int | None
    answer: bytes | None
    created: float
    ended: float | None
    expires: float | None


COLUMNS = [operations.c[name] for name in StoredOperation.__slots__]


def add(db: Connection, tenant: str, id: str, kind: str, owner: str, now: float) -> None:
    """Store a new running operation of process `owner`."""
    values = {"id": id, "tenant": tenant, "kind": kind, "state": RUNNING, "about": "{}", "owner": owner, "created": now}
    db.execute(insert(operations).values(**values))


def finish(
    db: Connection, tenant: str, id: str, state: str, status: int | None, answer: bytes, now: float, expires: float
) -> bool:
    """Store the end of a running operation; False if it has ended already, or was deleted."""
    values = {"state": state, "status": status, "answer": answer, "ended": now, "expires": expires}
    found = and_(operations.c.tenant == tenant, operations.c.id == id, operations.c.state == RUNNING)
    return db.execute(update(operations).where(found).values(**values)).rowcount == 1


def ask_to_stop(db: Connection, tenant: str, id: str) -> None:
    """Ask the process that runs the operation to stop it."""
    found = and_(operations.c.tenant == tenant, operations.c.id == id, operations.c.state == RUNNING)
    db.execute(update(operations).where(found).values(about=ASKED))


def going_on(db: Connection, owner: str) -> set[str]:
    """The ids of the running operations of process `owner` that nobody asked to stop."""
    found = and_(operations.c.owner == owner, operations.c.state == RUNNING, operations.c.about != ASKED)
    return set(db.execute(select(operations.c.id).where(found)).scalars())


def get(db: Connection, tenant: str, id: str) -> StoredOperation | None:
    row = db.execute(_of(tenant).where(operations.c.id == id)).first()
    return None if row is None else StoredOperation(*row)


def page(db: Connection, tenant: str, after: str, size: int) -> list[StoredOperation]:
    """Up to `size` operations from the page token `after` on, the newest first, without their answers."""
    rows = db.execute(Place.of(after).query(_of(tenant), operations).limit(size))
    return [StoredOperation(*row) for row in rows]


def running(db: Connection, tenant: str) -> int:
    """The number of running operations of a tenant."""
    found = and_(operations.c.tenant == tenant, operations.c.state == RUNNING)
    return db.execute(select(func.count()).select_from(operations).where(found)).scalar_one()


def remove(db: Connection, tenant: str, id: str) -> None:
    """Delete an operation."""
    db.execute(delete(operations).where(and_(operations.c.tenant == tenant, operations.c.id == id)))


def lose(db: Connection, owner: str, answer_to: Callable[[str], tuple[int, bytes]], now: float, expires: float) -> int:
    """End the running operations of processes that have ended; their number.

    owner: this process. answer_to: (status, answer) of an operation, from its kind.
    """
    others = select(operations.c.owner).where(operations.c.state == RUNNING, operations.c.owner != owner).distinct()
    dead = [each for each in db.execute(others).scalars() if presence.ended(db, each)]
    if not dead:
        return 0
    found = and_(operations.c.state == RUNNING, operations.c.owner.in_(dead))
    lost = db.execute(select(operations.c.tenant, operations.c.id, operations.c.kind).where(found)).all()
    for row in lost:
        finish(db, row.tenant, row.id, "failed", *answer_to(row.kind), now, expires)
    return len(lost)


def running_of(db: Connection, owner: str) -> set[str]:
    """The ids of the running operations of process `owner`."""
    found = and_(operations.c.owner == owner, operations.c.state == RUNNING)
    return set(db.execute(select(operations.c.id).where(found)).scalars())


def drop_running(db: Connection, ids: Collection[str]) -> None:
    """Delete those of `ids` that run: their requests were refused."""
    db.execute(delete(operations).where(operations.c.id.in_(ids), operations.c.state == RUNNING))


def expired(db: Connection, now: float) -> list[bytes]:
    """Delete operations whose result has expired; their answers."""
    old = and_(operations.c.expires.is_not(None), operations.c.expires <= now)
    rows = db.execute(select(operations.c.tenant, operations.c.id, operations.c.answer).where(old).limit(WIDTH)).all()
    for row in rows:
        db.execute(delete(operations).where(and_(operations.c.tenant == row.tenant, operations.c.id == row.id)))
    return [row.answer for row in rows if row.answer is not None]


def _of(tenant: str) -> Select:  # type: ignore[type-arg]
    return select(*COLUMNS).where(operations.c.tenant == tenant)
